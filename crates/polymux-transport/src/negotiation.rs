//! Start of a connection: the kernel offers capabilities, and the reply requests some of them.
//!
//! Invariants:
//! * Only offered capabilities are requested. Each wish that the kernel does not offer is logged once.
//! * Kernels older than protocol 7.31 (Linux 5.4) are refused: their structures have other lengths.

use std::io;

use polymux_types::Errno;

use crate::buffer::RequestBuffer;
use crate::device::Device;
use crate::wire::{Capabilities, Header, InitReply, InitRequest, Operation, Request, RequestForm};

/// The version that is spoken here.
const VERSION: (u32, u32) = (7, 45);
/// The oldest minor version that is understood.
const MINOR_MIN: u32 = 31;

/// Most pages of a request where the kernel does not negotiate the number.
const UNNEGOTIATED_PAGES_MAX: u32 = 32;

/// File systems that may lie on one another below this one when files are passed through. With one, the tiers may not be
/// such file systems themselves, and this one can still be the lower layer of another.
const STACK_DEPTH_MAX: u32 = 1;

/// The features that a file system requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wishes {
    /// Capabilities; those that are not offered are left out.
    pub capabilities: Capabilities,
    /// Most bytes of a write.
    pub write_max: u32,
    /// Requests that the kernel may send ahead (read-ahead, write-back) before it waits for answers.
    pub background_max: u16,
    /// From how many of these on the device counts as congested.
    pub congestion_threshold: u16,
}

impl Default for Wishes {
    /// Long requests, and the features that every kernel enables by itself.
    fn default() -> Self {
        Self {
            capabilities: Capabilities::ASYNC_READ | Capabilities::BIG_WRITES | Capabilities::MAX_PAGES,
            write_max: 1024 * 1024,
            background_max: 16,
            congestion_threshold: 12,
        }
    }
}

/// The result of the negotiation with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// Version of the kernel's protocol, both parts.
    pub kernel_version: (u32, u32),
    /// Capabilities that are in use.
    pub capabilities: Capabilities,
    /// Most bytes of a write.
    pub write_max: u32,
    /// Most pages of a request.
    pub pages_max: u16,
}

impl Agreement {
    /// It as bytes, for a process that takes the connection over.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Self { kernel_version: (major, minor), capabilities, write_max, pages_max } = self;
        let mut bytes = vec![AGREEMENT_FORM];
        bytes.extend(capabilities.0.to_le_bytes());
        bytes.extend([major, minor, write_max, &u32::from(*pages_max)].iter().flat_map(|number| number.to_le_bytes()));
        bytes
    }

    /// Decodes the output of [`Agreement::encode`]; `None` if another version of the program wrote it.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&[form], rest) = bytes.split_first_chunk()?;
        let (capabilities, rest) = rest.split_first_chunk()?;
        let (numbers, []) = rest.as_chunks::<4>() else { return None };
        let &[major, minor, write_max, pages_max] = numbers else { return None };
        let number = u32::from_le_bytes;
        (form == AGREEMENT_FORM).then_some(Self {
            kernel_version: (number(major), number(minor)),
            capabilities: Capabilities(u64::from_le_bytes(*capabilities)),
            write_max: number(write_max),
            pages_max: u16::try_from(number(pages_max)).ok()?,
        })
    }

    /// The resulting form of requests.
    #[must_use]
    pub fn form(&self) -> RequestForm {
        RequestForm { long_set_xattr: self.capabilities.contains(Capabilities::SETXATTR_EXT) }
    }
}

/// First byte of an encoded agreement.
const AGREEMENT_FORM: u8 = 1;

/// Bytes of a page, which is not the same on all processors.
fn page_size() -> u32 {
    u32::try_from(rustix::param::page_size()).expect("a page is far smaller than memory")
}

/// Derives the agreement and the reply from the offer of a kernel.
fn settle(offer: &InitRequest, wishes: &Wishes) -> (Agreement, InitReply) {
    let mut wanted = wishes.capabilities;
    if offer.capabilities.contains(Capabilities::INIT_EXT) {
        wanted = wanted | Capabilities::INIT_EXT;
    }
    let capabilities = wanted & offer.capabilities;
    let write_max = match capabilities.contains(Capabilities::MAX_PAGES) {
        true => wishes.write_max,
        false => wishes.write_max.min(UNNEGOTIATED_PAGES_MAX * page_size()),
    };
    let pages = write_max.max(offer.read_ahead_max).div_ceil(page_size());
    let pages_max = u16::try_from(pages).unwrap_or(u16::MAX);
    let passthrough = capabilities.contains(Capabilities::PASSTHROUGH);
    let reply = InitReply {
        version: VERSION,
        read_ahead_max: offer.read_ahead_max,
        capabilities,
        background_max: wishes.background_max,
        congestion_threshold: wishes.congestion_threshold,
        write_max,
        pages_max,
        stack_depth_max: if passthrough { STACK_DEPTH_MAX } else { 0 },
    };
    (Agreement { kernel_version: offer.version, capabilities, write_max, pages_max }, reply)
}

/// Waits for the first request of a connection and answers it. `wishes` is called with the offered capabilities.
///
/// # Errors
/// The connection was closed, the kernel is too old, or it begins with something else.
pub fn negotiate(device: &Device, wishes: impl Fn(Capabilities) -> Wishes) -> io::Result<Agreement> {
    let mut buffer = RequestBuffer::new(page_size());
    loop {
        let Some(length) = device.receive(buffer.room())? else {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "the kernel closed the connection at once"));
        };
        let bytes = buffer.filled(length);
        let unique = Header::parse(bytes)?.unique;
        let Ok(Request { operation: Operation::Init { offer }, .. }) = Request::parse(bytes, RequestForm::default())
        else {
            device.answer(unique, Err(Errno::EIO), &[]);
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the connection does not begin with INIT"));
        };
        let (major, minor) = offer.version;
        if major > VERSION.0 {
            // It comes back with ours.
            let (_, mut reply) = settle(&offer, &wishes(Capabilities::NONE));
            reply.capabilities = Capabilities::NONE;
            device.answer(unique, Ok(()), &reply.encode());
            continue;
        }
        if major < VERSION.0 || minor < MINOR_MIN {
            device.answer(unique, Err(Errno::EPROTO), &[]);
            let text = format!("the kernel speaks FUSE {major}.{minor}; {}.{MINOR_MIN} is needed", VERSION.0);
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let wishes = wishes(offer.capabilities);
        let (agreement, reply) = settle(&offer, &wishes);
        for name in wishes.capabilities.without(agreement.capabilities).names() {
            log::info!("the kernel does not offer {name}; going on without");
        }
        device.answer(unique, Ok(()), &reply.encode());
        return Ok(agreement);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wishes(capabilities: Capabilities) -> Wishes {
        Wishes { capabilities, write_max: 1024 * 1024, background_max: 64, congestion_threshold: 48 }
    }

    fn offer(capabilities: Capabilities) -> InitRequest {
        InitRequest { version: (7, 38), read_ahead_max: 128 * 1024, capabilities }
    }

    #[test]
    fn only_what_is_offered_is_asked_for() {
        let (agreement, reply) = settle(
            &offer(Capabilities::ASYNC_READ | Capabilities::MAX_PAGES | Capabilities::WRITEBACK_CACHE),
            &wishes(Capabilities::ASYNC_READ | Capabilities::MAX_PAGES | Capabilities::PASSTHROUGH),
        );
        assert_eq!(agreement.capabilities, Capabilities::ASYNC_READ | Capabilities::MAX_PAGES);
        assert_eq!(reply.stack_depth_max, 0);
        assert_eq!(reply.write_max, 1024 * 1024);
        assert_eq!(u32::from(reply.pages_max) * page_size(), 1024 * 1024);
    }

    #[test]
    fn more_than_32_capabilities_are_used_only_where_the_kernel_knows_of_them() {
        let both = Capabilities::PASSTHROUGH | Capabilities::INIT_EXT;
        let (_, reply) = settle(&offer(both), &wishes(Capabilities::PASSTHROUGH));
        assert_eq!((reply.capabilities, reply.stack_depth_max), (both, STACK_DEPTH_MAX));
    }

    #[test]
    fn an_agreement_is_read_as_it_was_written_and_nothing_else_is() {
        let (agreement, _) = settle(&offer(Capabilities::ASYNC_READ), &wishes(Capabilities::ASYNC_READ));
        let bytes = agreement.encode();
        assert_eq!(Agreement::decode(&bytes), Some(agreement));
        assert_eq!(Agreement::decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(Agreement::decode(&[bytes.clone(), vec![0]].concat()), None);
        assert_eq!(Agreement::decode(&[vec![AGREEMENT_FORM + 1], bytes[1..].to_vec()].concat()), None);
        assert_eq!(Agreement::decode(&[]), None);
    }

    #[test]
    fn without_a_say_in_their_size_requests_stay_short() {
        let (agreement, _) = settle(&offer(Capabilities::BIG_WRITES), &wishes(Capabilities::MAX_PAGES));
        assert_eq!(agreement.write_max, 32 * page_size());
    }
}
