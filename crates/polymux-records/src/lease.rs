//! Interface for programs that use a file by a copy of its map (docs/design/0046).

use polymux_types::{LeaseApplicant, LeaseRefusal, LeaseTicket};

use crate::attributes::HandleId;

/// Issues tickets to programs that ask on an open file.
pub trait LeasePort: Send + Sync {
    /// A ticket for a description.
    ///
    /// # Errors
    /// Why there is none.
    fn issue(&self, handle: HandleId, applicant: LeaseApplicant) -> Result<LeaseTicket, LeaseRefusal>;
}
