//! The kernel's protocol: decoding of requests and encoding of answers.
//!
//! Invariants:
//! * Nothing but these modules knows where a field lies. Everything else sees [`Request`]s and the `…Reply` structures.
//! * Reading never panics, allocates nothing and copies no data: names and written bytes are slices of the request. An
//!   inconsistent request is [`Malformed`].
//! * A request has three parts: the header, a structure whose length depends on the kind of request alone, and the rest
//!   (names and data). `/dev/fuse` delivers them one after the other, `io_uring` in three places.
//! * The protocol is that of version 7.31 up to 7.45: older kernels are refused in the negotiation, so that no structure
//!   has more than one length, except as decided by the negotiation itself ([`RequestForm`]).

mod bytes;
mod init;
mod listing;
mod opcode;
mod operation;
mod reply;
mod request;
mod ring;

pub use self::bytes::Malformed;
pub use self::init::{Capabilities, InitReply, InitRequest};
pub use self::listing::{Listing, Room};
pub use self::opcode::Opcode;
pub use self::operation::{AttrChange, CopyWidth, Forgets, OpenRequestFlags, Operation, PageUse, WriteFlags};
pub use self::reply::{Attr, AttrReply, EntryReply, OpenFlags, OpenReply, Space, StatxReply};
pub use self::reply::{commanded, copied, created, seek_result, written, xattr_size};
pub use self::request::{HEADER_LENGTH, Header, Request, RequestForm};

pub(crate) use self::reply::{answer_header, expiry, outdated_pages, resend};
pub(crate) use self::ring::{RING_HEADERS_LENGTH, RingHeaders, one_ring, ring_command};
