//! The profile of a tier (key `P<tier>`), version 1: the measured performance of its device, and the performance observed since
//! (docs/design/0019).
//!
//! It is a hint: a volume without it works, a program that does not know it leaves it alone, and the profile of a tier that does
//! not exist means nothing.

use polymux_tier::measure::{Caveats, Direction, Measurement, Pattern, Point, Way};
use polymux_types::Timestamp;

use super::frame::{Reader, Writer};
use crate::error::Error;
use crate::report::{LiveBandwidth, MeasuredProfile, TierProfile};

const VERSION: u8 = 1;

const NANOSECONDS: u32 = 1_000_000_000;

const MAY_BE_MEMORY: u8 = 1;
const TAKES_LESS_ROOM: u8 = 2;
const IS_SMALL: u8 = 4;

/// The bytes of the record.
pub fn encode(profile: &TierProfile) -> Vec<u8> {
    let mut writer = Writer::new(VERSION);
    match &profile.measured {
        None => {
            writer.u8(0);
        }
        Some(MeasuredProfile { at, measurement }) => {
            writer.u8(match measurement.way {
                Way::Direct => 1,
                Way::Synced => 2,
                Way::Memory => 3,
            });
            let caveats = measurement.caveats;
            let flag = |holds: bool, bit: u8| if holds { bit } else { 0 };
            writer.i64(at.seconds).u32(at.nanoseconds).u64(measurement.file_bytes).u32(measurement.elapsed_ms);
            writer.u8(flag(caveats.may_be_memory, MAY_BE_MEMORY)
                | flag(caveats.takes_less_room, TAKES_LESS_ROOM)
                | flag(caveats.is_small, IS_SMALL));
            writer.u8(u8::try_from(measurement.points.len()).expect("a measurement has few loads"));
            measurement.points.iter().for_each(|point| put_point(&mut writer, point));
        }
    }
    writer.u8(u8::try_from(profile.live.len()).expect("there are two directions"));
    for live in &profile.live {
        writer.u8(number_of(live.direction)).u64(live.bytes_per_second).u32(live.busy_seconds);
        writer.i64(live.at.seconds).u32(live.at.nanoseconds);
    }
    writer.finish()
}

fn number_of(direction: Direction) -> u8 {
    match direction {
        Direction::Read => 0,
        Direction::Write => 1,
    }
}

fn put_point(writer: &mut Writer, point: &Point) {
    let pattern = match point.pattern {
        Pattern::Sequential => 0,
        Pattern::Random => 1,
    };
    writer.u8(number_of(point.direction)).u8(pattern).u32(point.request_bytes).u16(point.in_flight);
    writer.u32(point.requests).u64(point.bytes_per_second).u32(point.median_us).u32(point.p99_us);
}

/// Reads a record.
pub fn decode(record: &[u8]) -> Result<TierProfile, Error> {
    let mut reader = Reader::new("the profile of a tier", record, VERSION)?;
    let way = match reader.u8()? {
        0 => None,
        1 => Some(Way::Direct),
        2 => Some(Way::Synced),
        3 => Some(Way::Memory),
        _ => return Err(reader.invalid("it was measured in no known way")),
    };
    let measured = way.map(|way| read_measured(&mut reader, way)).transpose()?;
    let mut live: Vec<LiveBandwidth> = Vec::new();
    for _ in 0..reader.u8()? {
        let direction = read_direction(&mut reader)?;
        if live.last().is_some_and(|last| last.direction >= direction) {
            return Err(reader.invalid("its directions are not in order"));
        }
        let (bytes_per_second, busy_seconds) = (reader.u64()?, reader.u32()?);
        live.push(LiveBandwidth { direction, bytes_per_second, busy_seconds, at: read_time(&mut reader)? });
    }
    reader.finish()?;
    Ok(TierProfile { measured, live })
}

fn read_measured(reader: &mut Reader<'_>, way: Way) -> Result<MeasuredProfile, Error> {
    let at = read_time(reader)?;
    let (file_bytes, elapsed_ms, flags) = (reader.u64()?, reader.u32()?, reader.u8()?);
    if flags > MAY_BE_MEMORY | TAKES_LESS_ROOM | IS_SMALL {
        return Err(reader.invalid("it has a caveat that is not known"));
    }
    let caveats = Caveats {
        may_be_memory: flags & MAY_BE_MEMORY != 0,
        takes_less_room: flags & TAKES_LESS_ROOM != 0,
        is_small: flags & IS_SMALL != 0,
    };
    let points = (0..reader.u8()?).map(|_| read_point(reader)).collect::<Result<Vec<Point>, Error>>()?;
    Ok(MeasuredProfile { at, measurement: Measurement { way, file_bytes, elapsed_ms, caveats, points } })
}

fn read_time(reader: &mut Reader<'_>) -> Result<Timestamp, Error> {
    let time = Timestamp { seconds: reader.i64()?, nanoseconds: reader.u32()? };
    if time.nanoseconds >= NANOSECONDS {
        return Err(reader.invalid("a time has more than a second of nanoseconds"));
    }
    Ok(time)
}

fn read_direction(reader: &mut Reader<'_>) -> Result<Direction, Error> {
    match reader.u8()? {
        0 => Ok(Direction::Read),
        1 => Ok(Direction::Write),
        _ => Err(reader.invalid("a direction is none")),
    }
}

fn read_point(reader: &mut Reader<'_>) -> Result<Point, Error> {
    let direction = read_direction(reader)?;
    let pattern = match reader.u8()? {
        0 => Pattern::Sequential,
        1 => Pattern::Random,
        _ => return Err(reader.invalid("a pattern is none")),
    };
    let (request_bytes, in_flight, requests) = (reader.u32()?, reader.u16()?, reader.u32()?);
    let bytes_per_second = reader.u64()?;
    let (median_us, p99_us) = (reader.u32()?, reader.u32()?);
    Ok(Point { direction, pattern, request_bytes, in_flight, requests, bytes_per_second, median_us, p99_us })
}

/// One that was only seen at work, one that was measured, and one that was both.
pub(super) fn samples() -> [TierProfile; 3] {
    let at = Timestamp::new(1_700_000_000, 999_999_999);
    let point = Point {
        direction: Direction::Write,
        pattern: Pattern::Sequential,
        request_bytes: 1 << 20,
        in_flight: 4,
        requests: 130,
        bytes_per_second: 120_000_000,
        median_us: 34_000,
        p99_us: 41_000,
    };
    let read = Point { direction: Direction::Read, pattern: Pattern::Random, request_bytes: 4096, ..point };
    let caveats = Caveats { may_be_memory: true, takes_less_room: false, is_small: true };
    let measurement =
        Measurement { way: Way::Synced, file_bytes: 136 << 20, elapsed_ms: 6013, caveats, points: vec![point, read] };
    let measured = Some(MeasuredProfile { at, measurement });
    let live = |direction| LiveBandwidth { direction, bytes_per_second: 56_000_000, busy_seconds: 12, at };
    [
        TierProfile { measured: None, live: vec![live(Direction::Write)] },
        TierProfile { measured: measured.clone(), live: Vec::new() },
        TierProfile { measured, live: vec![live(Direction::Read), live(Direction::Write)] },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_reads_back_as_it_was_written() {
        for profile in samples().into_iter().chain([TierProfile::default()]) {
            assert_eq!(decode(&encode(&profile)).unwrap(), profile);
        }
    }

    /// The encoding of version 1 for the last of [`samples`].
    const WRITTEN: &str = "010200f1536500000000ffc99a3b00008008000000007d1700000502010000001000040082000000000e270700000000d084000028a000\
        00000100100000040082000000000e270700000000d084000028a000000200007e5603000000000c00000000f1536500000000ffc99a3b\
        01007e5603000000000c00000000f1536500000000ffc99a3bbc6bfc20";

    #[test]
    fn what_version_1_wrote_is_read_for_ever_as_it_was_meant() {
        let digits = WRITTEN.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        let written: Vec<u8> = digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect();
        assert_eq!(decode(&written).unwrap(), samples()[2]);
        assert_eq!(encode(&samples()[2]), written);
    }

    #[test]
    fn what_means_nothing_is_refused() {
        let whole = encode(&samples()[2]);
        // Way, flags, and the direction of the first load: after version, time, file and duration.
        for (at, value) in [(1, 4), (26, 8), (28, 2), (29, 2)] {
            let mut body = whole[..whole.len() - 4].to_vec();
            body[at] = value;
            let checksum = crc32c::crc32c(&body);
            body.extend_from_slice(&checksum.to_le_bytes());
            assert!(decode(&body).is_err(), "byte {at} of {value}");
        }
        let mut swapped = samples()[2].clone();
        swapped.live.reverse();
        assert!(decode(&encode(&swapped)).is_err(), "directions stand in order");
    }
}
