//! On-disk form of a [`Label`].
//!
//! Invariants:
//! * The frame never changes between versions: magic (8 bytes), version (u32), length of the payload (u32), payload, CRC-32C
//!   of everything before it (u32); all numbers little-endian. So a damaged label is distinguished from a newer one.
//! * Every version that was ever written decodes for ever; a fixture of each lies in `tests/fixtures`.

use polymux_types::{Epoch, TierId, VolumeId};

use crate::error::TierError;
use crate::label::{CleanStamp, Label};

const MAGIC: &[u8; 8] = b"PMUXTIER";
/// Newest version of the label that is known here; [`encode`] writes it.
pub const LABEL_VERSION: u32 = 1;
const HEADER_LENGTH: usize = 16;
const CHECKSUM_LENGTH: usize = 4;

const CLEAN_STAMP_IN_USE: u8 = 0;
const CLEAN_STAMP_CLEAN: u8 = 1;

/// Why bytes are no usable label.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelFormatError {
    /// The bytes do not begin as a label does.
    #[error("not a label of a Polymux tier")]
    NotALabel,
    /// It was a label once.
    #[error("the label is damaged: {0}")]
    Damaged(&'static str),
    /// A newer Polymux wrote it.
    #[error("the label has format version {found}, and this program knows versions up to {known}: use a newer Polymux")]
    NewerVersion {
        /// Version of the label.
        found: u32,
        /// Newest version known here.
        known: u32,
    },
}

impl From<LabelFormatError> for TierError {
    fn from(error: LabelFormatError) -> Self {
        Self::Label(error.to_string())
    }
}

/// Encodes a label in the newest version. Panics where a name is longer than 65,535 bytes, which no configuration
/// allows.
#[must_use]
pub fn encode(label: &Label) -> Vec<u8> {
    let mut payload = Vec::new();
    payload.extend_from_slice(&label.volume.0);
    payload.extend_from_slice(&label.tier.0.to_le_bytes());
    payload.extend_from_slice(&label.instance.to_le_bytes());
    payload.extend_from_slice(&label.epoch.0.to_le_bytes());
    let (stamp, bytes_used) = match label.clean {
        CleanStamp::InUse => (CLEAN_STAMP_IN_USE, 0),
        CleanStamp::Clean { bytes_used } => (CLEAN_STAMP_CLEAN, bytes_used),
    };
    payload.push(stamp);
    payload.extend_from_slice(&bytes_used.to_le_bytes());
    put_text(&mut payload, &label.volume_name);
    put_text(&mut payload, &label.tier_name);
    frame(LABEL_VERSION, &payload)
}

fn frame(version: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_LENGTH + payload.len() + CHECKSUM_LENGTH);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&version.to_le_bytes());
    let length = u32::try_from(payload.len()).expect("a label is short");
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(payload);
    let checksum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

fn put_text(payload: &mut Vec<u8>, text: &str) {
    let length = u16::try_from(text.len()).expect("a name is at most 65,535 bytes long");
    payload.extend_from_slice(&length.to_le_bytes());
    payload.extend_from_slice(text.as_bytes());
}

/// Decodes a label of any version known here.
pub fn decode(bytes: &[u8]) -> Result<Label, LabelFormatError> {
    if bytes.len() < MAGIC.len() || &bytes[..MAGIC.len()] != MAGIC {
        return Err(LabelFormatError::NotALabel);
    }
    let mut header = Cursor { rest: &bytes[MAGIC.len()..] };
    let version = header.u32()?;
    let length = usize::try_from(header.u32()?).map_err(|_| LabelFormatError::Damaged("its length is impossible"))?;
    let framed = HEADER_LENGTH.checked_add(length).ok_or(LabelFormatError::Damaged("its length is impossible"))?;
    if bytes.len() < framed.saturating_add(CHECKSUM_LENGTH) {
        return Err(LabelFormatError::Damaged("it is cut short"));
    }
    if bytes.len() > framed + CHECKSUM_LENGTH {
        return Err(LabelFormatError::Damaged("something follows it"));
    }
    let mut trailer = Cursor { rest: &bytes[framed..] };
    if trailer.u32()? != crc32c::crc32c(&bytes[..framed]) {
        return Err(LabelFormatError::Damaged("its checksum is wrong"));
    }
    match version {
        0 => Err(LabelFormatError::Damaged("it has version 0")),
        1 => decode_version_1(&bytes[HEADER_LENGTH..framed]),
        found => Err(LabelFormatError::NewerVersion { found, known: LABEL_VERSION }),
    }
}

fn decode_version_1(payload: &[u8]) -> Result<Label, LabelFormatError> {
    let mut cursor = Cursor { rest: payload };
    let volume = VolumeId(cursor.array()?);
    let tier = TierId(cursor.u16()?);
    let instance = cursor.u64()?;
    let epoch = Epoch(cursor.u64()?);
    let [stamp] = cursor.array()?;
    let bytes_used = cursor.u64()?;
    let clean = match stamp {
        CLEAN_STAMP_IN_USE => CleanStamp::InUse,
        CLEAN_STAMP_CLEAN => CleanStamp::Clean { bytes_used },
        _ => return Err(LabelFormatError::Damaged("its clean stamp is unknown")),
    };
    let volume_name = cursor.text()?;
    let tier_name = cursor.text()?;
    if !cursor.rest.is_empty() {
        return Err(LabelFormatError::Damaged("it has more fields than its version"));
    }
    Ok(Label { volume, volume_name, tier, tier_name, instance, epoch, clean })
}

/// The format, for its fuzz targets.
pub(crate) fn on_disk_format() -> polymux_types::on_disk_format::OnDiskFormat {
    use polymux_types::on_disk_format::{FormatForm, OnDiskFormat};
    OnDiskFormat {
        name: "label",
        samples: || {
            let sample = |clean| Label {
                volume: VolumeId::from_random([9; 16]),
                volume_name: "home".to_owned(),
                tier: TierId(3),
                tier_name: "fast".to_owned(),
                instance: 77,
                epoch: Epoch(5),
                clean,
            };
            [CleanStamp::InUse, CleanStamp::Clean { bytes_used: 1 << 40 }].map(|clean| encode(&sample(clean))).to_vec()
        },
        repair: |bytes| {
            if let Some((body, checksum)) = bytes.split_last_chunk_mut::<CHECKSUM_LENGTH>() {
                let payload = body.len().checked_sub(HEADER_LENGTH).and_then(|length| u32::try_from(length).ok());
                if let Some(payload) = payload {
                    body[12..HEADER_LENGTH].copy_from_slice(&payload.to_le_bytes());
                }
                *checksum = crc32c::crc32c(body).to_le_bytes();
            }
        },
        read_and_write: |bytes| decode(bytes).ok().map(|label| encode(&label)),
        // The used space of a tier that is in use means nothing.
        form: FormatForm::HasUnused,
    }
}

/// The part of a payload that was not read yet.
struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], LabelFormatError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(LabelFormatError::Damaged("it is cut short"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], LabelFormatError> {
        Ok(self.take(LENGTH)?.try_into().expect("exactly this many bytes were taken"))
    }

    fn u16(&mut self) -> Result<u16, LabelFormatError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, LabelFormatError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, LabelFormatError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn text(&mut self) -> Result<String, LabelFormatError> {
        let length = usize::from(self.u16()?);
        let bytes = self.take(length)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| LabelFormatError::Damaged("a name is not UTF-8"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn label() -> Label {
        Label {
            volume: VolumeId::from_random([0x5a; 16]),
            volume_name: "home".to_owned(),
            tier: TierId(3),
            tier_name: "fast".to_owned(),
            instance: 0x0123_4567_89ab_cdef,
            epoch: Epoch(42),
            clean: CleanStamp::Clean { bytes_used: 1 << 40 },
        }
    }

    #[test]
    fn a_label_survives_encoding_and_decoding() {
        for clean in [CleanStamp::InUse, CleanStamp::Clean { bytes_used: 7 }] {
            let label = Label { clean, ..label() };
            assert_eq!(decode(&encode(&label)), Ok(label));
        }
    }

    /// A label as version 1 wrote it; kept for ever.
    const FIXTURE: &[u8] = include_bytes!("../tests/fixtures/label-v1.bin");

    #[test]
    fn a_label_of_version_1_is_read_for_ever() {
        let expected = Label {
            volume: VolumeId::from_random([3; 16]),
            volume_name: "media".to_owned(),
            tier: TierId(1),
            tier_name: "slow".to_owned(),
            instance: 77,
            epoch: Epoch(9),
            clean: CleanStamp::Clean { bytes_used: 4096 },
        };
        assert_eq!(decode(FIXTURE), Ok(expected.clone()));
        assert_eq!(encode(&expected), FIXTURE);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let bytes = encode(&label());
        for position in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[position / 8] ^= 1 << (position % 8);
            let error = decode(&damaged).expect_err("a flipped bit must not decode");
            if position / 8 < MAGIC.len() {
                assert_eq!(error, LabelFormatError::NotALabel);
            } else {
                assert!(matches!(error, LabelFormatError::Damaged(_)), "bit {position}: {error:?}");
            }
        }
    }

    #[test]
    fn every_cut_is_noticed() {
        let bytes = encode(&label());
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length]).is_err(), "cut at {length}");
        }
        let mut longer = bytes;
        longer.push(0);
        assert_eq!(decode(&longer), Err(LabelFormatError::Damaged("something follows it")));
    }

    #[test]
    fn a_newer_version_is_named_and_not_called_damaged() {
        let error = decode(&frame(9, b"fields of the future")).unwrap_err();
        assert_eq!(error, LabelFormatError::NewerVersion { found: 9, known: 1 });
        let text = error.to_string();
        assert!(text.contains('9') && text.contains('1'), "{text}");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), magic in any::<bool>()) {
            if magic {
                let mut prefixed = MAGIC.to_vec();
                prefixed.append(&mut bytes);
                bytes = prefixed;
            }
            prop_assert!(decode(&bytes).is_err());
        }

        #[test]
        fn arbitrary_payloads_in_a_valid_frame_never_panic(payload in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&frame(1, &payload));
        }
    }
}
