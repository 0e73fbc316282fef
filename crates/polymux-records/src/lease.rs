//! Interface for programs that read a file by a copy of its map (docs/design/0046).

use polymux_types::{LeaseRefusal, LeaseTicket};

use crate::attributes::HandleId;

/// Issues tickets to programs that ask on an open file.
pub trait LeasePort: Send + Sync {
    /// A ticket for a description, for a process of this user.
    ///
    /// # Errors
    /// Why there is none.
    fn issue(&self, handle: HandleId, uid: u32) -> Result<LeaseTicket, LeaseRefusal>;
}
