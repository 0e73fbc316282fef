//! Records of the volume as a whole, version 1: `V` identity, `E` epoch, `t<tier>` the tier table.
//!
//! A tier that is in service as any other has a record of version 1; one that joins, leaves or drains has version 2, with a
//! state at its end, so that a program that knows version 1 alone refuses the volume instead of placing files there.

use polymux_types::{Epoch, TierId, VolumeId};

use super::frame::{Reader, Writer};
use crate::error::Error;

const VERSION: u8 = 1;
const VERSION_STATE: u8 = 2;

/// Version of the whole set of record formats. A volume of a newer one is refused before anything is touched.
pub const FORMAT_VERSION: u32 = 1;

/// Value of the `V` record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeRecord {
    /// Version of all formats together.
    pub format_version: u32,
    /// Identity of the volume.
    pub id: VolumeId,
    /// Its name.
    pub name: String,
}

/// How the volume was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Everything was drained, synced and settled.
    Clean,
    /// In use, or it crashed.
    Unclean,
}

/// Value of the `E` record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochRecord {
    /// The epoch that all labels had when it was last completed.
    pub epoch: Epoch,
    /// Labels are being raised to `epoch + 1`: both are current.
    pub raising: bool,
    /// How the last use ended.
    pub shutdown: Shutdown,
}

/// How far a tier belongs to the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierStanding {
    /// It takes new data.
    InService,
    /// Files leave it; nothing new comes to it.
    Draining,
    /// It is being added and holds nothing. It belongs to the volume once the configuration lists it.
    Joining,
    /// It is being removed and holds nothing. It belongs to the volume as long as the configuration lists it.
    Leaving,
    /// It is lost for good, and files let go of it. It still belongs to the volume as long as the configuration lists it.
    Forgotten,
}

impl TierStanding {
    /// The standing of a tier that the configuration lists: an operation under way is finished, or was not begun.
    pub fn when_listed(self) -> Self {
        match self {
            Self::InService | Self::Joining | Self::Forgotten => Self::InService,
            Self::Draining | Self::Leaving => Self::Draining,
        }
    }

    /// Whether a configuration that does not list the tier is right.
    pub fn may_be_unlisted(self) -> bool {
        matches!(self, Self::Joining | Self::Leaving | Self::Forgotten)
    }
}

/// Value of a `t` record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierRecord {
    /// Name of the tier.
    pub name: String,
    /// Random number of this membership, which the label repeats.
    pub instance: u64,
    /// The epoch last written to its label.
    pub epoch: Epoch,
    /// How far the tier belongs to the volume.
    pub standing: TierStanding,
}

impl VolumeRecord {
    /// The bytes of the record.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new(VERSION);
        writer.u32(self.format_version).bytes(&self.id.0).bytes(self.name.as_bytes());
        writer.finish()
    }

    /// Reads a record.
    pub fn decode(record: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader::new("the volume record", record, VERSION)?;
        let format_version = reader.u32()?;
        let id = reader.bytes()?.try_into().map_err(|_| reader.invalid("its identity has a wrong length"))?;
        let name = decode_text(&mut reader)?;
        // A newer format may add fields, and the version must be readable all the same.
        if format_version <= FORMAT_VERSION {
            reader.finish()?;
        }
        Ok(Self { format_version, id: VolumeId(id), name })
    }
}

impl EpochRecord {
    /// The bytes of the record.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new(VERSION);
        writer.u64(self.epoch.0).u8(u8::from(self.raising)).u8(match self.shutdown {
            Shutdown::Unclean => 0,
            Shutdown::Clean => 1,
        });
        writer.finish()
    }

    /// Reads a record.
    pub fn decode(record: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader::new("the epoch record", record, VERSION)?;
        let epoch = Epoch(reader.u64()?);
        let (raising, shutdown) = match (reader.u8()?, reader.u8()?) {
            (raising @ (0 | 1), 0) => (raising == 1, Shutdown::Unclean),
            (raising @ (0 | 1), 1) => (raising == 1, Shutdown::Clean),
            _ => return Err(reader.invalid("it is in no known state")),
        };
        reader.finish()?;
        Ok(Self { epoch, raising, shutdown })
    }
}

impl TierRecord {
    /// The bytes of the record.
    pub fn encode(&self) -> Vec<u8> {
        let state = match self.standing {
            TierStanding::InService => None,
            TierStanding::Draining => Some(1),
            TierStanding::Joining => Some(2),
            TierStanding::Leaving => Some(3),
            TierStanding::Forgotten => Some(4),
        };
        let mut writer = Writer::new(if state.is_some() { VERSION_STATE } else { VERSION });
        writer.bytes(self.name.as_bytes()).u64(self.instance).u64(self.epoch.0);
        if let Some(state) = state {
            writer.u8(state);
        }
        writer.finish()
    }

    /// Reads the record of a tier.
    pub fn decode(id: TierId, record: &[u8]) -> Result<Self, Error> {
        let subject = format!("the record of tier {id}");
        let mut reader = Reader::new(&subject, record, VERSION_STATE)?;
        let name = decode_text(&mut reader)?;
        let (instance, epoch) = (reader.u64()?, Epoch(reader.u64()?));
        let standing = match record.first() {
            Some(&VERSION) => TierStanding::InService,
            _ => match reader.u8()? {
                1 => TierStanding::Draining,
                2 => TierStanding::Joining,
                3 => TierStanding::Leaving,
                4 => TierStanding::Forgotten,
                _ => return Err(reader.invalid("it is in no known state")),
            },
        };
        reader.finish()?;
        Ok(Self { name, instance, epoch, standing })
    }
}

fn decode_text(reader: &mut Reader<'_>) -> Result<String, Error> {
    String::from_utf8(reader.bytes()?).map_err(|_| reader.invalid("a name in it is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_records_read_back_as_they_were_written() {
        let volume = VolumeRecord { format_version: 1, id: VolumeId::from_random([9; 16]), name: "media".to_owned() };
        assert_eq!(VolumeRecord::decode(&volume.encode()).unwrap(), volume);
        for (raising, shutdown) in [(true, Shutdown::Unclean), (false, Shutdown::Clean)] {
            let epoch = EpochRecord { epoch: Epoch(7), raising, shutdown };
            assert_eq!(EpochRecord::decode(&epoch.encode()).unwrap(), epoch);
        }
        let standings = [TierStanding::InService, TierStanding::Draining, TierStanding::Joining, TierStanding::Leaving];
        for standing in standings.into_iter().chain([TierStanding::Forgotten]) {
            let tier = TierRecord { name: "fast".to_owned(), instance: 1 << 60, epoch: Epoch(2), standing };
            assert_eq!(TierRecord::decode(TierId(0), &tier.encode()).unwrap(), tier);
        }
    }

    #[test]
    fn a_tier_in_service_has_the_record_that_version_1_wrote() {
        let mut writer = Writer::new(1);
        writer.bytes(b"fast").u64(1 << 60).u64(2);
        let written = writer.finish();
        let read = TierRecord::decode(TierId(0), &written).unwrap();
        assert_eq!(read.standing, TierStanding::InService);
        assert_eq!(read.encode(), written);
    }

    #[test]
    fn a_tier_in_an_unknown_state_is_refused() {
        for state in [0, 5, 255] {
            let mut writer = Writer::new(VERSION_STATE);
            writer.bytes(b"fast").u64(1 << 60).u64(2).u8(state);
            assert!(TierRecord::decode(TierId(0), &writer.finish()).is_err(), "{state}");
        }
    }

    #[test]
    fn a_newer_format_can_still_be_recognised() {
        let mut writer = Writer::new(VERSION);
        writer.u32(FORMAT_VERSION + 1).bytes(&[1; 16]).bytes(b"media").bytes(b"something new");
        assert_eq!(VolumeRecord::decode(&writer.finish()).unwrap().format_version, FORMAT_VERSION + 1);
    }
}
