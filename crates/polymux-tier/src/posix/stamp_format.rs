//! Format of the extended attribute `user.polymux` of an object, version 1. Little-endian, CRC-32C at its end.

use crate::object::ObjectStamp;

const VERSION: u8 = 1;

/// The value of the attribute.
pub(super) fn encode(stamp: &ObjectStamp) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    bytes.extend_from_slice(&stamp.volume.0);
    bytes.extend_from_slice(&stamp.ino.0.to_le_bytes());
    for field in [stamp.generation, stamp.mode, stamp.uid, stamp.gid, stamp.modified.nanoseconds] {
        bytes.extend_from_slice(&field.to_le_bytes());
    }
    bytes.extend_from_slice(&stamp.modified.seconds.to_le_bytes());
    let length = u32::try_from(stamp.path.len()).expect("a path is shorter than 4 GiB");
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&stamp.path);
    let checksum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}
