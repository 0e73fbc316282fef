//! Random calls on one file of two tiers while its halves move between them, against the bytes that it should have; as fsx does through a
//! mount.

#[allow(dead_code, reason = "shared with other tests")]
mod common;

use common::{Random, TestVolume};
use polymux_embed::{AllocateKind, Errno, File, FileOptions, SeekTarget, Volume};

const SIZE_MAX: u64 = 4 << 20;
const LENGTH_MAX: u64 = 128 << 10;
const CALLS: usize = 6_000;

/// A range within the largest size; some begin or end at a block.
fn range(random: &mut Random) -> (u64, u64) {
    let align = |value: u64, unit: u64| value / unit * unit;
    let unit = random.of(&[1, 1, 512, 4096]);
    let offset = align(random.below(SIZE_MAX - LENGTH_MAX), unit);
    (offset, align(random.below(LENGTH_MAX), unit).max(1))
}

fn at(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

/// A file, and the bytes that it should have.
struct Exerciser {
    volume: Volume,
    file: File,
    bytes: Vec<u8>,
    random: Random,
    moves: usize,
    splits: usize,
}

fn open(volume: &Volume) -> File {
    volume.open_file("/file", &FileOptions::new().read().write().create(0o644)).unwrap()
}

impl Exerciser {
    fn new(made: &TestVolume, seed: u64) -> Self {
        let volume = made.open();
        let file = open(&volume);
        Self { volume, file, bytes: Vec::new(), random: Random(seed), moves: 0, splits: 0 }
    }

    fn grow_to(&mut self, end: u64) {
        let length = self.bytes.len().max(at(end));
        self.bytes.resize(length, 0);
    }

    fn zero(&mut self, offset: u64, length: u64) {
        let end = self.bytes.len().min(at(offset + length));
        self.bytes[at(offset).min(end)..end].fill(0);
    }

    fn write(&mut self) {
        let (offset, length) = range(&mut self.random);
        let byte = u8::try_from(self.random.below(255)).unwrap() + 1;
        let data: Vec<u8> = (0..length).map(|index| byte.wrapping_add(u8::try_from(index % 13).unwrap())).collect();
        assert_eq!(self.file.write_at(&data, offset).unwrap(), data.len());
        self.grow_to(offset + length);
        self.bytes[at(offset)..at(offset + length)].copy_from_slice(&data);
    }

    fn read(&mut self) {
        let (offset, length) = range(&mut self.random);
        let mut found = vec![0xEE; at(length)];
        let count = self.file.read_at(&mut found, offset).unwrap();
        let expected = &self.bytes[at(offset).min(self.bytes.len())..at(offset + length).min(self.bytes.len())];
        assert_eq!(count, expected.len(), "bytes read at {offset}");
        if let Some(wrong) = (0..count).find(|index| found[*index] != expected[*index]) {
            panic!("byte {} is {}, not {}", offset + wrong as u64, found[wrong], expected[wrong]);
        }
    }

    fn allocate(&mut self, kind: AllocateKind) {
        let (offset, length) = range(&mut self.random);
        self.file.allocate(kind, offset, length).unwrap();
        if matches!(kind, AllocateKind::Extend | AllocateKind::ZeroRange) {
            self.grow_to(offset + length);
        }
        if !matches!(kind, AllocateKind::Extend | AllocateKind::KeepSize) {
            self.zero(offset, length);
        }
    }

    fn copy(&mut self) {
        let ((from, length), (to, _)) = (range(&mut self.random), range(&mut self.random));
        let length = length.min(from.abs_diff(to)).min((self.bytes.len() as u64).saturating_sub(from));
        if length == 0 {
            return;
        }
        let copied = self.file.copy_range(from, &self.file, to, length).unwrap();
        assert!(copied > 0 && copied <= length);
        self.grow_to(to + copied);
        self.bytes.copy_within(at(from)..at(from + copied), at(to));
    }

    /// Whatever lies between an offset and the data that is found next has to be zero.
    fn seek(&mut self) {
        let (offset, _) = range(&mut self.random);
        let size = self.bytes.len() as u64;
        match self.file.seek_to(SeekTarget::Data, offset) {
            Ok(data) => {
                assert!(offset <= data && data < size, "data at {data} from {offset} of {size}");
                assert!(self.bytes[at(offset)..at(data)].iter().all(|byte| *byte == 0));
            }
            Err(error) => {
                assert_eq!(error.errno(), Errno::ENXIO);
                assert!(self.bytes.iter().skip(at(offset)).all(|byte| *byte == 0), "data from {offset} is not found");
            }
        }
    }

    /// Sends a part to one of the tiers.
    fn migrate(&mut self) {
        let tier = self.random.of(&["tier-0", "tier-1"]);
        let (from, half) = (self.random.below(2) * SIZE_MAX / 2, SIZE_MAX / 2);
        let file_system = self.volume.file_system().unwrap();
        self.moves += usize::from(file_system.migrate(self.file.ino(), tier, Some(from..from + half)).is_ok());
        let shares = file_system.locate(self.file.ino()).unwrap().shares;
        self.splits += usize::from(shares.iter().filter(|share| share.bytes_mapped > 0).count() == 2);
    }

    fn call(&mut self) {
        const OTHERS: [AllocateKind; 4] =
            [AllocateKind::ZeroRange, AllocateKind::ZeroRangeKeepSize, AllocateKind::Extend, AllocateKind::KeepSize];
        match self.random.below(24) {
            0..8 => self.write(),
            8..16 => self.read(),
            16 => {
                let size = self.random.below(SIZE_MAX);
                self.file.set_size(size).unwrap();
                self.bytes.resize(at(size), 0);
            }
            17 => self.allocate(AllocateKind::PunchHole),
            18 | 19 => {
                let kind = self.random.of(&OTHERS);
                self.allocate(kind);
            }
            20 => self.copy(),
            21 => self.seek(),
            22 => self.file.sync_data().unwrap(),
            _ => self.migrate(),
        }
        assert_eq!(self.file.attributes().unwrap().size, self.bytes.len() as u64);
    }

    fn check_all(&self) {
        let mut found = vec![0; self.bytes.len() + 1];
        let count = self.file.read_at(&mut found, 0).unwrap();
        assert!(found[..count] == self.bytes, "the file has other bytes");
    }

    /// Closes the volume and opens it again.
    fn reopen(self, made: &TestVolume) -> Self {
        let Self { volume, file, bytes, random, moves, splits } = self;
        file.close().unwrap();
        volume.close().unwrap();
        let volume = made.open();
        let file = open(&volume);
        Self { volume, file, bytes, random, moves, splits }
    }
}

#[test]
fn random_calls_on_a_file_that_moves_find_every_byte() {
    for seed in 1..=3 {
        let made = TestVolume::make(2);
        let mut exerciser = Exerciser::new(&made, seed);
        for number in 1..=CALLS {
            exerciser.call();
            if number % (CALLS / 3) == 0 {
                exerciser.check_all();
                exerciser = exerciser.reopen(&made);
                exerciser.check_all();
            }
        }
        let Exerciser { moves, splits, .. } = exerciser;
        assert!(
            moves > 50 && splits > 10,
            "{moves} moves were accepted, and the file was seen on two tiers {splits} times"
        );
    }
}
