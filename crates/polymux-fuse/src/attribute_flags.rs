//! Flags of files and directories (chattr(1)), in the two forms that programs know.
//!
//! The kernel calls `vfs_fileattr_set` before a request comes (Linux 5.13 and later), which lets the owner alone through,
//! or CAP_FOWNER, and asks for CAP_LINUX_IMMUTABLE where `immutable` or `append only` changes; these commands do not get here by any other
//! way. It opens the file for itself, sends the command, and releases the file.

use std::time::Duration;

use polymux_fs::AttributeFlags;
use polymux_transport::wire::Header;
use polymux_types::Errno;

use crate::adapter::{Adapter, Outcome, caller, ino};
use crate::write_back::WriteBack;

/// Commands as a 64-bit program gives them; the kernel translates those of others.
const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
const GET_EXTENDED: u32 = 0x801c_581f;
const SET_EXTENDED: u32 = 0x401c_5820;

/// `struct fsxattr`: flags, extent size, extents, project, size of extents that are copied on a write, padding.
const EXTENDED_LENGTH: usize = 28;
/// Where the project stands in it.
const PROJECT: std::ops::Range<usize> = 12..16;

/// Each flag with its bit in `struct fsxattr`.
const EXTENDED_BITS: [(AttributeFlags, u32); 4] = [
    (AttributeFlags::IMMUTABLE, 0x8),
    (AttributeFlags::APPEND_ONLY, 0x10),
    (AttributeFlags::NO_ATIME, 0x40),
    (AttributeFlags::NO_DUMP, 0x80),
];

/// Looks whether a file is closed after all,
const CLOSING_LOOKS: usize = 20;
/// and the time between two of them.
const CLOSING_LOOK_INTERVAL: Duration = Duration::from_millis(5);

impl Adapter {
    /// Carries a command out and returns its answer.
    pub(crate) fn command(&self, header: &Header, command: u32, data: &[u8], answer_length: u32) -> Outcome<Vec<u8>> {
        let flags_of = || self.run("getflags", ino(header), |fs| fs.attribute_flags(ino(header)));
        let answer = match command {
            GET_FLAGS => flags_of()?.bits().to_le_bytes().to_vec(),
            GET_EXTENDED => extended(flags_of()?).to_vec(),
            SET_FLAGS => self.set_flags(header, from_plain(data)?)?,
            SET_EXTENDED => self.set_flags(header, from_extended(data)?)?,
            _ => return Err(Errno::ENOTTY),
        };
        if u32::try_from(answer.len()) == Ok(answer_length) { Ok(answer) } else { Err(Errno::ENOTTY) }
    }

    fn set_flags(&self, header: &Header, flags: AttributeFlags) -> Outcome<Vec<u8>> {
        let set =
            || self.run("setflags", ino(header), |fs| fs.set_attribute_flags(&caller(header), ino(header), flags));
        let mut outcome = set();
        // The kernel tells of a close some time after it: a file that was just closed may count as open.
        for _ in 0..CLOSING_LOOKS {
            if outcome != Err(Errno::EBUSY) || self.write_back == WriteBack::Off {
                break;
            }
            std::thread::sleep(CLOSING_LOOK_INTERVAL);
            outcome = set();
        }
        outcome?;
        // The change time is another one, and the answer does not say so.
        self.device.expire_attributes(header.node);
        Ok(Vec::new())
    }
}

fn word(data: &[u8]) -> Result<u32, Errno> {
    data.first_chunk().map(|word| u32::from_le_bytes(*word)).ok_or(Errno::EINVAL)
}

fn from_plain(data: &[u8]) -> Result<AttributeFlags, Errno> {
    AttributeFlags::from_bits(word(data)?).ok_or(Errno::EOPNOTSUPP)
}

fn from_extended(data: &[u8]) -> Result<AttributeFlags, Errno> {
    if data.len() != EXTENDED_LENGTH {
        return Err(Errno::EINVAL);
    }
    let bits = word(data)?;
    let known = EXTENDED_BITS.iter().fold(0, |known, (_, bit)| known | bit);
    // Nor are there projects.
    if bits & !known != 0 || word(&data[PROJECT])? != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let set = EXTENDED_BITS.iter().filter(|(_, bit)| bits & bit != 0);
    Ok(set.fold(AttributeFlags::default(), |flags, (flag, _)| flags.with(*flag)))
}

fn extended(flags: AttributeFlags) -> [u8; EXTENDED_LENGTH] {
    let bits = EXTENDED_BITS.iter().filter(|(flag, _)| flags.intersects(*flag)).fold(0, |bits, (_, bit)| bits | bit);
    let mut answer = [0; EXTENDED_LENGTH];
    answer[..4].copy_from_slice(&bits.to_le_bytes());
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_go_both_ways_in_both_forms_and_unknown_ones_are_refused() {
        for bits in [0_u32, 0x10, 0x20, 0x40, 0x80, 0xf0] {
            let flags = AttributeFlags::from_bits(bits).unwrap();
            assert_eq!(from_plain(&bits.to_le_bytes()), Ok(flags));
            assert_eq!(from_extended(&extended(flags)), Ok(flags));
        }
        assert_eq!(from_plain(&0x8_0000_u32.to_le_bytes()), Err(Errno::EOPNOTSUPP));
        assert_eq!(from_plain(&[0; 3]), Err(Errno::EINVAL));
        let mut with_project = extended(AttributeFlags::NO_DUMP);
        with_project[12] = 1;
        assert_eq!(from_extended(&with_project), Err(Errno::EOPNOTSUPP));
        let mut synchronous = extended(AttributeFlags::NO_DUMP);
        synchronous[0] |= 0x20;
        assert_eq!(from_extended(&synchronous), Err(Errno::EOPNOTSUPP));
        assert_eq!(from_extended(&[0; 27]), Err(Errno::EINVAL));
    }
}
