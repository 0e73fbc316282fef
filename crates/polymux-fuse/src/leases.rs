//! The command by which a program asks on an open file for a lease (docs/design/0046).

use polymux_fs::HandleId;
use polymux_lease::command;
use polymux_transport::wire::Header;
use polymux_types::{Errno, LeaseApplicant, LeaseRefusal};

use crate::adapter::{Adapter, Outcome};

impl Adapter {
    /// Answers with a ticket, or with the number of a refusal.
    pub(crate) fn lease_ticket(
        &self,
        header: &Header,
        handle: u64,
        data: &[u8],
        answer_length: u32,
    ) -> Outcome<Vec<u8>> {
        if usize::try_from(answer_length) != Ok(command::LENGTH) || data.len() != command::LENGTH {
            return Err(Errno::ENOTTY);
        }
        let issued = match command::wish_of(data) {
            Some(wish) => self.fs.issue_lease_ticket(HandleId(handle), LeaseApplicant { uid: header.uid, wish }),
            None => Err(LeaseRefusal::OtherVersion),
        };
        Ok(command::encode(issued.map_err(LeaseRefusal::code)).to_vec())
    }
}
