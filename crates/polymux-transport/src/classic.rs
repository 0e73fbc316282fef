//! The classic transport: threads that read requests from `/dev/fuse` and answer them there.
//!
//! What is true here:
//! * Each thread has a descriptor with a queue of answers of its own, where the kernel can clone them, and a buffer for one
//!   request. Threads can be added at any time.
//! * A thread ends when the kernel closes the connection, and not before.
//! * A panic that reaches a thread ends the process: the request would never be answered, and the mount would hang once all
//!   threads were gone. A process that ends makes every request fail at once, and the next mount recovers.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use polymux_types::Errno;

use crate::buffer::RequestBuffer;
use crate::connection::Connection;
use crate::device::Device;
use crate::wire::{Header, Request};

/// A thread that serves requests.
pub type Worker = JoinHandle<io::Result<()>>;

/// Starts one more thread for a connection.
///
/// # Errors
/// As [`thread::Builder::spawn`].
pub fn start_worker(connection: &Arc<Connection>) -> io::Result<Worker> {
    let connection = connection.clone();
    thread::Builder::new().name("fuse".to_owned()).spawn(move || {
        catch_unwind(AssertUnwindSafe(|| serve(&connection))).unwrap_or_else(|_| {
            log::error!("the FUSE transport failed; ending the process so that the mount does not hang");
            std::process::abort()
        })
    })
}

fn serve(connection: &Connection) -> io::Result<()> {
    let device = connection.device.clone_queue().map_or_else(
        |error| {
            log::debug!("threads share a descriptor of /dev/fuse: {error}");
            connection.device.clone()
        },
        Arc::new,
    );
    let counters = connection.counters.for_thread();
    let mut buffer = RequestBuffer::new(connection.agreement.write_max);
    while let Some(length) = device.receive(buffer.room())? {
        let bytes = buffer.filled(length);
        match Request::parse(bytes, connection.agreement.form()) {
            Ok(request) => {
                counters.count(request.header.opcode);
                connection.dispatch(&request, &device);
            }
            Err(malformed) => refuse(&device, bytes, malformed)?,
        }
    }
    Ok(())
}

/// Answers what cannot be understood. Without a header nobody knows whom to answer.
fn refuse(device: &Device, bytes: &[u8], malformed: crate::wire::Malformed) -> io::Result<()> {
    let header = Header::parse(bytes)?;
    log::error!("{malformed} (kind {}, {} bytes)", header.opcode, bytes.len());
    device.answer(header.unique, Err(Errno::EIO), &[]);
    Ok(())
}
