//! Format of the extended attribute `user.polymux` of an object, version 2. Little-endian, CRC-32C at its end.
//!
//! Invariants:
//! * Version 1, which had no [`StampRefresh`], is read for ever; a fixture of it lies in `tests/fixtures`.
//! * An incomplete attribute counts as none: no part of it is believed.

use polymux_types::{Epoch, Ino, Sequence, Timestamp, VolumeId};

use crate::object::{ObjectStamp, StampDirectory, StampOrder, StampRefresh};

const VERSION_WITHOUT_REFRESH: u8 = 1;
const VERSION: u8 = 2;

const MAY_HAVE_XATTRS: u8 = 1;

/// The value of the attribute.
pub(super) fn encode(stamp: &ObjectStamp) -> Vec<u8> {
    let mut bytes = vec![if stamp.refresh.is_some() { VERSION } else { VERSION_WITHOUT_REFRESH }];
    bytes.extend_from_slice(&stamp.volume.0);
    bytes.extend_from_slice(&stamp.ino.0.to_le_bytes());
    for field in [stamp.generation, stamp.mode, stamp.uid, stamp.gid, stamp.modified.nanoseconds] {
        bytes.extend_from_slice(&field.to_le_bytes());
    }
    bytes.extend_from_slice(&stamp.modified.seconds.to_le_bytes());
    let length = u32::try_from(stamp.path.len()).expect("a path is shorter than 4 GiB");
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&stamp.path);
    if let Some(refresh) = &stamp.refresh {
        encode_refresh(&mut bytes, refresh);
    }
    let checksum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

fn encode_refresh(bytes: &mut Vec<u8>, refresh: &StampRefresh) {
    for field in [refresh.order.epoch.0, refresh.order.sequence.0, refresh.size] {
        bytes.extend_from_slice(&field.to_le_bytes());
    }
    bytes.extend_from_slice(&refresh.at.seconds.to_le_bytes());
    bytes.extend_from_slice(&refresh.at.nanoseconds.to_le_bytes());
    bytes.extend_from_slice(&refresh.links.to_le_bytes());
    bytes.push(if refresh.may_have_xattrs { MAY_HAVE_XATTRS } else { 0 });
    let count = u16::try_from(refresh.directories.len()).expect("a path has fewer names than 64 Ki");
    bytes.extend_from_slice(&count.to_le_bytes());
    for directory in &refresh.directories {
        bytes.extend_from_slice(&directory.ino.0.to_le_bytes());
        bytes.extend_from_slice(&directory.permissions.to_le_bytes());
        bytes.extend_from_slice(&directory.uid.to_le_bytes());
        bytes.extend_from_slice(&directory.gid.to_le_bytes());
    }
}

/// Reads the value of the attribute; the reason where it is none.
pub(super) fn decode(bytes: &[u8]) -> Result<ObjectStamp, &'static str> {
    let (body, checksum) = bytes.split_last_chunk::<4>().ok_or("it is too short")?;
    if crc32c::crc32c(body) != u32::from_le_bytes(*checksum) {
        return Err("its checksum does not match");
    }
    let mut rest = Rest(body);
    let version = rest.take::<1>()?[0];
    if !(VERSION_WITHOUT_REFRESH..=VERSION).contains(&version) {
        return Err("its version is not known to this program");
    }
    let (volume, ino) = (VolumeId(rest.take()?), Ino(rest.u64()?));
    let (generation, mode, uid, gid) = (rest.u32()?, rest.u32()?, rest.u32()?, rest.u32()?);
    let modified = rest.nanoseconds_and_seconds()?;
    let length = rest.u32()? as usize;
    let path = rest.bytes(length)?.to_vec();
    let mut stamp = ObjectStamp { volume, ino, generation, mode, uid, gid, modified, path, refresh: None };
    if version == VERSION {
        let refresh = decode_refresh(&mut rest)?;
        if refresh.directories.len() != stamp.names().count() {
            return Err("its path and its directories do not fit together");
        }
        stamp.refresh = Some(refresh);
    }
    if rest.0.is_empty() { Ok(stamp) } else { Err("bytes follow its last field") }
}

fn decode_refresh(rest: &mut Rest<'_>) -> Result<StampRefresh, &'static str> {
    let order = StampOrder { epoch: Epoch(rest.u64()?), sequence: Sequence(rest.u64()?) };
    let size = rest.u64()?;
    let seconds = i64::from_le_bytes(rest.take()?);
    let at = Timestamp { seconds, nanoseconds: valid_nanoseconds(rest.u32()?)? };
    let links = rest.u32()?;
    let may_have_xattrs = match rest.take::<1>()? {
        [0] => false,
        [MAY_HAVE_XATTRS] => true,
        _ => return Err("it has unknown flags"),
    };
    let count = u16::from_le_bytes(rest.take()?);
    let mut directories = Vec::new();
    for _ in 0..count {
        directories.push(StampDirectory {
            ino: Ino(rest.u64()?),
            permissions: u16::from_le_bytes(rest.take()?),
            uid: rest.u32()?,
            gid: rest.u32()?,
        });
    }
    Ok(StampRefresh { order, at, size, links, may_have_xattrs, directories })
}

fn valid_nanoseconds(nanoseconds: u32) -> Result<u32, &'static str> {
    if nanoseconds < 1_000_000_000 { Ok(nanoseconds) } else { Err("a time has more than a second of nanoseconds") }
}

/// The unread bytes.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let (field, rest) = self.0.split_first_chunk::<N>().ok_or("it ends in the middle of a field")?;
        self.0 = rest;
        Ok(*field)
    }

    fn u32(&mut self) -> Result<u32, &'static str> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, &'static str> {
        self.take().map(u64::from_le_bytes)
    }

    fn nanoseconds_and_seconds(&mut self) -> Result<Timestamp, &'static str> {
        let nanoseconds = valid_nanoseconds(self.u32()?)?;
        Ok(Timestamp { seconds: i64::from_le_bytes(self.take()?), nanoseconds })
    }

    fn bytes(&mut self, length: usize) -> Result<&'a [u8], &'static str> {
        let (field, rest) = self.0.split_at_checked(length).ok_or("a field is longer than the stamp")?;
        self.0 = rest;
        Ok(field)
    }
}

/// For the fuzz targets.
pub(crate) fn on_disk_format() -> polymux_types::on_disk_format::OnDiskFormat {
    use polymux_types::on_disk_format::{FormatForm, OnDiskFormat};
    OnDiskFormat {
        name: "stamp",
        samples: || [None, Some(sample_refresh())].map(|refresh| encode(&sample(refresh))).to_vec(),
        repair: |bytes| {
            if let Some((body, checksum)) = bytes.split_last_chunk_mut::<4>() {
                *checksum = crc32c::crc32c(body).to_le_bytes();
            }
        },
        read_and_write: |bytes| decode(bytes).ok().map(|stamp| encode(&stamp)),
        form: FormatForm::Unique,
    }
}

fn sample(refresh: Option<StampRefresh>) -> ObjectStamp {
    ObjectStamp {
        volume: VolumeId::from_random([9; 16]),
        ino: Ino(77),
        generation: 1,
        mode: 0o100_640,
        uid: 1000,
        gid: 100,
        modified: Timestamp::new(-2, 999_999_999),
        path: b"home/photos/one.raw".to_vec(),
        refresh,
    }
}

fn sample_refresh() -> StampRefresh {
    let directory = |ino, permissions| StampDirectory { ino: Ino(ino), permissions, uid: 1000, gid: 100 };
    StampRefresh {
        order: StampOrder { epoch: Epoch(3), sequence: Sequence(1 << 40) },
        at: Timestamp::new(1_700_000_000, 5),
        size: 123_456,
        links: 2,
        may_have_xattrs: true,
        directories: vec![directory(1, 0o755), directory(20, 0o750), directory(21, 0o2775)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stamps as released versions wrote them; kept for ever.
    const FIXTURE_V1: &[u8] = include_bytes!("../../tests/fixtures/stamp-v1.bin");
    const FIXTURE_V2: &[u8] = include_bytes!("../../tests/fixtures/stamp-v2.bin");

    #[test]
    fn stamps_of_every_version_are_read_for_ever() {
        assert_eq!(decode(FIXTURE_V1), Ok(sample(None)));
        assert_eq!(decode(FIXTURE_V2), Ok(sample(Some(sample_refresh()))));
        assert_eq!(encode(&sample(None)), FIXTURE_V1);
        assert_eq!(encode(&sample(Some(sample_refresh()))), FIXTURE_V2);
    }

    #[test]
    fn a_stamp_that_is_not_whole_is_none() {
        for at in 0..FIXTURE_V2.len() {
            assert!(decode(&FIXTURE_V2[..at]).is_err(), "cut at {at}");
            let mut turned = FIXTURE_V2.to_vec();
            turned[at] ^= 1;
            assert!(decode(&turned).is_err(), "a bit of byte {at} turned");
        }
    }

    #[test]
    fn a_path_that_is_cut_keeps_the_names_next_to_the_file_and_their_directories() {
        let cut = sample(Some(sample_refresh())).without_upper_half().expect("three names can be cut");
        assert_eq!(cut.path, b"one.raw");
        assert_eq!(cut.refresh.as_ref().map(|refresh| refresh.directories[0].ino), Some(Ino(21)));
        assert_eq!(decode(&encode(&cut)), Ok(cut.clone()));
        assert_eq!(cut.without_upper_half(), None);
        assert_eq!(sample(None).without_upper_half(), None, "nobody could tell where a path of version 1 begins");
    }
}
