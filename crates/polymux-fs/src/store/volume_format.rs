//! Records of the volume as a whole, version 1: `V` identity, `E` epoch, `t<tier>` the tier table.

use polymux_types::{Epoch, TierId, VolumeId};

use super::frame::{Reader, Writer};
use crate::error::Error;

const VERSION: u8 = 1;

/// Version of the whole set of record formats. A volume of a newer one is refused before anything is touched.
pub(crate) const FORMAT_VERSION: u32 = 1;

/// Value of the `V` record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumeRecord {
    pub(crate) format_version: u32,
    pub(crate) id: VolumeId,
    pub(crate) name: String,
}

/// How the volume was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shutdown {
    /// Everything was drained, synced and settled.
    Clean,
    /// In use, or it crashed.
    Unclean,
}

/// Value of the `E` record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EpochRecord {
    /// The epoch that all labels had when it was last completed.
    pub(crate) epoch: Epoch,
    /// Labels are being raised to `epoch + 1`: both are current.
    pub(crate) raising: bool,
    pub(crate) shutdown: Shutdown,
}

/// Value of a `t` record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TierRecord {
    pub(crate) name: String,
    pub(crate) instance: u64,
    /// The epoch last written to its label.
    pub(crate) epoch: Epoch,
}

impl VolumeRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new(VERSION);
        writer.u32(self.format_version).bytes(&self.id.0).bytes(self.name.as_bytes());
        writer.finish()
    }

    pub(crate) fn decode(record: &[u8]) -> Result<Self, Error> {
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
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new(VERSION);
        writer.u64(self.epoch.0).u8(u8::from(self.raising)).u8(match self.shutdown {
            Shutdown::Unclean => 0,
            Shutdown::Clean => 1,
        });
        writer.finish()
    }

    pub(crate) fn decode(record: &[u8]) -> Result<Self, Error> {
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
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new(VERSION);
        writer.bytes(self.name.as_bytes()).u64(self.instance).u64(self.epoch.0);
        writer.finish()
    }

    pub(crate) fn decode(id: TierId, record: &[u8]) -> Result<Self, Error> {
        let subject = format!("the record of tier {id}");
        let mut reader = Reader::new(&subject, record, VERSION)?;
        let name = decode_text(&mut reader)?;
        let (instance, epoch) = (reader.u64()?, Epoch(reader.u64()?));
        reader.finish()?;
        Ok(Self { name, instance, epoch })
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
        let tier = TierRecord { name: "fast".to_owned(), instance: 1 << 60, epoch: Epoch(2) };
        assert_eq!(TierRecord::decode(TierId(0), &tier.encode()).unwrap(), tier);
    }

    #[test]
    fn a_newer_format_can_still_be_recognised() {
        let mut writer = Writer::new(VERSION);
        writer.u32(FORMAT_VERSION + 1).bytes(&[1; 16]).bytes(b"media").bytes(b"something new");
        assert_eq!(VolumeRecord::decode(&writer.finish()).unwrap().format_version, FORMAT_VERSION + 1);
    }
}
