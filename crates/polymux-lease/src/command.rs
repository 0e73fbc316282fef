//! The command by which a program asks on an open file for a ticket. It comes to the daemon through the kernel, which let the program open the file.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use polymux_types::{LeaseTicket, LeaseWish};
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};

use crate::VERSION;

/// Bytes of request and answer.
pub const LENGTH: usize = 64;
/// `_IOWR(0xd7, 1, char[64])`: a command that no file system of the kernel knows.
pub const NUMBER: u32 = 3 << 30 | 64 << 16 | 0xd7 << 8 | 1;

/// Leases that the program of a request can use; `None` where it is of another version.
#[must_use]
pub fn wish_of(request: &[u8]) -> Option<LeaseWish> {
    let word = |at: usize| request.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
    let is_known = request.len() == LENGTH && word(0)? == VERSION;
    let all = [LeaseWish::UnchangedFile, LeaseWish::AnyFile, LeaseWish::Inquiry];
    all.into_iter().find(|wish| is_known && word(4) == Some(*wish as u32))
}

/// The daemon's answer: a ticket, or the code of a refusal.
#[must_use]
pub fn encode(answer: Result<LeaseTicket, u32>) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    bytes[..4].copy_from_slice(&VERSION.to_le_bytes());
    match answer {
        Ok(ticket) => {
            bytes[8..24].copy_from_slice(&ticket.door);
            bytes[24..40].copy_from_slice(&ticket.ticket);
            bytes[40..56].copy_from_slice(&ticket.proof);
        }
        Err(code) => bytes[4..8].copy_from_slice(&code.to_le_bytes()),
    }
    bytes
}

/// Decodes an answer; a code of `u32::MAX` where the daemon is of another version.
///
/// # Errors
/// The code of the refusal.
pub fn decode(bytes: &[u8; LENGTH]) -> Result<LeaseTicket, u32> {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let secret = |at: usize| bytes[at..at + 16].try_into().expect("sixteen bytes");
    match (word(0), word(4)) {
        (VERSION, 0) => Ok(LeaseTicket { door: secret(8), ticket: secret(24), proof: secret(40) }),
        (VERSION, code) => Err(code),
        _ => Err(u32::MAX),
    }
}

/// Asks for a ticket on an open file.
///
/// # Errors
/// As `ioctl(2)`; `ENOTTY` where the file is on no volume with leases.
pub fn ask(file: impl AsFd, wish: LeaseWish) -> io::Result<[u8; LENGTH]> {
    let mut bytes = [0; LENGTH];
    bytes[..4].copy_from_slice(&VERSION.to_le_bytes());
    bytes[4..8].copy_from_slice(&(wish as u32).to_le_bytes());
    let file: BorrowedFd<'_> = file.as_fd();
    // SAFETY: the number says that the kernel reads and writes as many bytes as there are, and other file systems do not know it.
    unsafe { rustix::ioctl::ioctl(file, Ask(&mut bytes))? };
    Ok(bytes)
}

struct Ask<'a>(&'a mut [u8; LENGTH]);

// SAFETY: the pointer is that of the bytes, which live while this does, and the kernel keeps to the length in the number.
unsafe impl Ioctl for Ask<'_> {
    type Output = ();

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        Opcode::from(NUMBER)
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        self.0.as_mut_ptr().cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut std::ffi::c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_back_as_they_were_given() {
        let ticket = LeaseTicket { door: [1; 16], ticket: [2; 16], proof: [3; 16] };
        assert_eq!(decode(&encode(Ok(ticket))), Ok(ticket));
        assert_eq!(decode(&encode(Err(7))), Err(7));
        let mut other = encode(Ok(ticket));
        other[0] ^= 1;
        assert_eq!(decode(&other), Err(u32::MAX));
    }

    #[test]
    fn a_file_without_a_daemon_does_not_know_the_command() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(ask(&file, LeaseWish::AnyFile).unwrap_err().raw_os_error(), Some(libc::ENOTTY));
    }
}
