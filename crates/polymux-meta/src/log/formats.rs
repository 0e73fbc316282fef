//! The formats of the log, for their fuzz targets: header, entry, and a whole log with both.

use std::io;

use polymux_types::on_disk_format::{FormatForm, OnDiskFormat};

use super::Log;
use super::entry_format::{ALIGNMENT, EntryShape, PAYLOAD_MAX, WORD, commit_mark, decode, encode, encode_v1};
use super::header_format::{self, HEADER_LENGTH, LogHeader};
use super::medium::LogMedium;
use super::openings::Openings;
use super::ring::Replay;
use crate::batch::Batch;
use crate::slots::{SLOT_LENGTH, SlotRecord};

/// Where the sample of an entry lies, and with which salt.
const POSITION: u64 = 640;
const SALT: u64 = 99;
const RING_LENGTH: u64 = 16 * 1024;

pub(crate) fn on_disk_formats() -> Vec<OnDiskFormat> {
    vec![
        OnDiskFormat {
            name: "log-header",
            samples: || {
                let openings = Openings::UNKNOWN.and_then(64).and_then(POSITION);
                let second = LogHeader { turn: 5, checkpoint: 6400, openings, ..header() };
                vec![[header().encode(), second.encode()].concat(), [second.encode(), [0; SLOT_LENGTH]].concat()]
            },
            repair: repair_slots,
            read_and_write: |bytes| {
                let header = LogHeader::newest(bytes).ok()?;
                Some([header.encode(), header.encode()].concat())
            },
            form: FormatForm::HasUnused,
        },
        OnDiskFormat {
            name: "log-entry",
            samples: || {
                let mut samples = [0, 1, 100].map(|length| encode(POSITION, 3, SALT, 512, &vec![7; length])).to_vec();
                samples.push(encode_v1(POSITION, 3, SALT, &[7; 100]));
                samples
            },
            repair: |bytes| {
                repair_entry(bytes, POSITION, SALT);
            },
            read_and_write: |bytes| {
                let entry = decode(bytes, POSITION, SALT)?;
                let shape = EntryShape::of(word(bytes, 0)?)?;
                Some(again(shape, POSITION, entry.generation, SALT, entry.durable_through, entry.payload))
            },
            form: FormatForm::HasUnused,
        },
        OnDiskFormat {
            name: "log",
            samples: || vec![log_sample(0), log_sample(RING_LENGTH - 128)],
            repair: repair_log,
            read_and_write: read_and_write_log,
            form: FormatForm::HasUnused,
        },
        super::region::on_disk_format(),
    ]
}

fn header() -> LogHeader {
    LogHeader {
        store: 7,
        salt: SALT,
        ring_length: RING_LENGTH,
        turn: 4,
        generation: 3,
        checkpoint_generation: 1,
        checkpoint: POSITION,
        openings: Openings::UNKNOWN,
    }
}

/// An entry, in the version that it was read in.
fn again(
    shape: EntryShape,
    position: u64,
    generation: u32,
    salt: u64,
    durable_through: u64,
    payload: &[u8],
) -> Vec<u8> {
    if shape.has_durable_through() {
        encode(position, generation, salt, durable_through, payload)
    } else {
        encode_v1(position, generation, salt, payload)
    }
}

/// A log of three transactions whose first one lies so far from the beginning of the ring.
fn log_sample(offset: u64) -> Vec<u8> {
    let header = LogHeader { checkpoint: RING_LENGTH + offset, ..header() };
    let mut image = Image::new(&header);
    let mut position = header.checkpoint;
    for (generation, length) in [(1, 10), (2, 300), (3, 20)] {
        let mut batch = Batch::new();
        batch.put(b"key", vec![1; length]);
        batch.delete(b"gone");
        position = image.put(position, &encode(position, generation, SALT, RING_LENGTH, batch.as_bytes()));
    }
    image.bytes
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("a log of a test fits into memory")
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

fn put_word(bytes: &mut [u8], at: usize, value: u64) {
    if let Some(target) = bytes.get_mut(at..at + 8) {
        target.copy_from_slice(&value.to_le_bytes());
    }
}

fn repair_slots(bytes: &mut [u8]) {
    bytes.chunks_mut(SLOT_LENGTH).take(2).for_each(header_format::repair);
}

/// Makes an entry at the beginning of `bytes` whole, if it is one there. Returns its length.
fn repair_entry(bytes: &mut [u8], position: u64, salt: u64) -> Option<u64> {
    let first = word(bytes, 0)?;
    let shape = EntryShape::of(first)?;
    let length = shape.length();
    let start = index(shape.payload_start());
    let payload = bytes.get(start..start + index(shape.payload_length))?.to_vec();
    let generation = u32::try_from(word(bytes, 16)? & u64::from(u32::MAX)).ok()?;
    put_word(bytes, 8, position);
    let whole = again(shape, position, generation, salt, word(bytes, 24)?, &payload);
    put_word(bytes, 16, word(&whole, 16)?);
    put_word(bytes, index(length - WORD), commit_mark(position));
    Some(length)
}

/// Makes both headers whole, and every entry that follows the checkpoint of the one that counts up to the end of the ring.
fn repair_log(bytes: &mut [u8]) {
    repair_slots(bytes);
    let Ok(header) = LogHeader::newest(bytes) else { return };
    let Some(ring) = bytes.get_mut(index(HEADER_LENGTH)..) else { return };
    if header.ring_length > ring.len() as u64 {
        return;
    }
    let mut position = header.checkpoint;
    let mut offset = position % header.ring_length;
    while offset + ALIGNMENT <= header.ring_length {
        let Some(length) = repair_entry(&mut ring[index(offset)..], position, header.salt) else { return };
        offset += length;
        position += length;
    }
}

fn read_and_write_log(bytes: &[u8]) -> Option<Vec<u8>> {
    assert!(bytes.len() as u64 <= PAYLOAD_MAX, "a fuzzer makes short logs");
    let source = Image { bytes: bytes.to_vec(), ring_length: 0 };
    let header = Log::read_header(&source).ok()?;
    let mut image = Image::new(&header);
    let mut replay = Replay::new(&source, header);
    while let Some(entry) = replay.next().ok()? {
        // A payload that is no batch stops an opening; it is an entry all the same.
        if let Some(batch) = Batch::from_bytes(entry.payload.to_vec()) {
            assert_eq!(batch.as_bytes(), entry.payload, "a batch keeps its bytes");
        }
        let (payload, shape) = (entry.payload, entry.shape);
        let bytes = again(shape, entry.position, entry.generation, header.salt, entry.durable_through, payload);
        image.put(entry.position, &bytes);
    }
    replay.end().ok()?;
    replay.damage().ok()?;
    Some(image.bytes)
}

/// A log in memory.
struct Image {
    bytes: Vec<u8>,
    ring_length: u64,
}

impl Image {
    fn new(header: &LogHeader) -> Self {
        let mut bytes = [header.encode(), header.encode()].concat();
        bytes.resize(index(HEADER_LENGTH + header.ring_length), 0);
        Self { bytes, ring_length: header.ring_length }
    }

    /// Puts bytes at a position. Returns the one after them.
    fn put(&mut self, position: u64, bytes: &[u8]) -> u64 {
        for (at, byte) in (position..).zip(bytes) {
            self.bytes[index(HEADER_LENGTH + at % self.ring_length)] = *byte;
        }
        position + bytes.len() as u64
    }
}

impl LogMedium for Image {
    fn length(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let found = start.checked_add(bytes.len()).and_then(|end| self.bytes.get(start..end));
        bytes.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn write_durable(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn description(&self) -> String {
        "memory".to_owned()
    }
}
