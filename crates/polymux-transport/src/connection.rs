//! A connection to the kernel and whoever serves it.

use std::sync::Arc;

use polymux_types::Errno;

use crate::counters::MessageCounters;
use crate::device::Device;
use crate::negotiation::Agreement;
use crate::reply::Reply;
use crate::wire::{Header, Operation, Request};

/// A file system that answers requests.
pub trait Service: Send + Sync + 'static {
    /// Answers one request, now or later, on any thread.
    fn serve(&self, request: &Request<'_>, reply: Reply);

    /// The kernel gives back so many references to an inode. There is no answer.
    fn forget(&self, node: u64, count: u64);
}

/// What all threads that serve one mount share.
pub struct Connection {
    /// The descriptor that it was mounted with.
    pub device: Arc<Device>,
    /// What was agreed on.
    pub agreement: Agreement,
    /// What came so far.
    pub counters: Arc<MessageCounters>,
    service: Box<dyn Service>,
}

impl Connection {
    /// One that was negotiated.
    #[must_use]
    pub fn new(device: Arc<Device>, agreement: Agreement, service: impl Service) -> Self {
        Self { device, agreement, counters: Arc::default(), service: Box::new(service) }
    }

    /// Sees to one request that was read from `device`.
    pub(crate) fn dispatch(&self, request: &Request<'_>, device: &Arc<Device>) {
        let Header { unique, node, .. } = request.header;
        match request.operation {
            Operation::Forget { count } => self.service.forget(node, count),
            Operation::BatchForget { inodes } => inodes.for_each(|(node, count)| self.service.forget(node, count)),
            // Operations end by themselves; one that hangs in a tier is answered by whoever watches. There is no answer, and
            // the program goes on waiting for that of the request itself.
            Operation::Interrupt { .. } => {}
            // The connection closes next.
            Operation::Destroy => Reply::new(unique, device.clone()).ok(),
            // A connection begins only once.
            Operation::Init { .. } => Reply::new(unique, device.clone()).error(Errno::EIO),
            _ => self.service.serve(request, Reply::new(unique, device.clone())),
        }
    }
}
