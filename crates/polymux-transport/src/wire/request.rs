//! A received request: its header and its operation.

use super::bytes::{Malformed, Reader};
use super::opcode::Opcode;
use super::operation::Operation;

/// Length of the header of each request.
pub const HEADER_LENGTH: usize = 40;

/// The negotiated form of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestForm {
    /// `SETXATTR` carries flags of its own (`SETXATTR_EXT`).
    pub long_set_xattr: bool,
}

/// The header of each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Length of the whole request.
    pub length: u32,
    /// Number of its kind.
    pub opcode: u32,
    /// Identifies its answer.
    pub unique: u64,
    /// The inode it is about.
    pub node: u64,
    /// Who asks.
    pub uid: u32,
    /// Their group.
    pub gid: u32,
    /// The thread that asks; 0 where it is in another pid namespace.
    pub pid: u32,
}

/// The kernel sent a request before, and no answer came (`FUSE_UNIQUE_RESEND`).
const RESENT: u64 = 1 << 63;

impl Header {
    /// Whether the kernel sends this request again, because it was read and not answered: an earlier process may have carried it out.
    #[must_use]
    pub fn is_resent(&self) -> bool {
        self.unique & RESENT != 0
    }

    /// The number of the request, whether it is sent again or not.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.unique & !RESENT
    }

    /// Reads the header of a request.
    ///
    /// # Errors
    /// There are fewer bytes than a header has.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let header = Self {
            length: reader.u32()?,
            opcode: reader.u32()?,
            unique: reader.u64()?,
            node: reader.u64()?,
            uid: reader.u32()?,
            gid: reader.u32()?,
            pid: reader.u32()?,
        };
        // Extensions, which were not negotiated, and padding.
        reader.skip(4)?;
        Ok(header)
    }
}

/// A request of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The caller and the inode.
    pub header: Header,
    /// The requested operation.
    pub operation: Operation<'a>,
}

impl<'a> Request<'a> {
    /// Reads a request whose parts follow one another.
    ///
    /// # Errors
    /// It breaks the protocol. Where there is a header, [`Header::parse`] reads it, and the request can be refused.
    pub fn parse(bytes: &'a [u8], form: RequestForm) -> Result<Self, Malformed> {
        let header = Header::parse(bytes)?;
        if usize::try_from(header.length).ok() != Some(bytes.len()) {
            return Err(Malformed("another length than it says"));
        }
        let body = &bytes[HEADER_LENGTH..];
        let structure = structure_length(header.opcode, form);
        let (structure, rest) = body.split_at_checked(structure).ok_or(Malformed("too short"))?;
        Ok(Self { header, operation: Operation::parse(header.opcode, structure, rest, form)? })
    }

    /// Reads a request whose parts lie in three places; `structure` may be longer than the structure of the request.
    ///
    /// # Errors
    /// It breaks the protocol.
    pub fn from_parts(
        header: &[u8],
        structure: &'a [u8],
        rest: &'a [u8],
        form: RequestForm,
    ) -> Result<Self, Malformed> {
        let header = Header::parse(header)?;
        let structure = structure.get(..structure_length(header.opcode, form)).ok_or(Malformed("too short"))?;
        Ok(Self { header, operation: Operation::parse(header.opcode, structure, rest, form)? })
    }

    /// A word for the kind of request.
    #[must_use]
    pub fn name(&self) -> &'static str {
        Opcode::from_number(self.header.opcode).map_or("unknown", Opcode::name)
    }
}

/// Length of the extended structure of `SETXATTR`.
const LONG_SET_XATTR_LENGTH: usize = 16;

fn structure_length(opcode: u32, form: RequestForm) -> usize {
    match Opcode::from_number(opcode) {
        Some(Opcode::SetXattr) if form.long_set_xattr => LONG_SET_XATTR_LENGTH,
        Some(opcode) => opcode.structure_length(),
        None => 0,
    }
}
