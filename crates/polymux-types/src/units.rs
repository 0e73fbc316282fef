//! Sizes and shares as people write them: `5.3 TiB`, `512M`, `90 %`.

use std::fmt;
use std::str::FromStr;

/// A number of bytes. Binary units (`KiB` … `EiB`, also `K`, `M`, …) and decimal ones (`kB`, `MB`, …) are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize(pub u64);

/// Why a size or a share could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// No number at the beginning.
    #[error("`{0}` does not begin with a number; write for instance `5.3 TiB`")]
    NoNumber(String),
    /// The unit is none of those known.
    #[error("`{0}` has an unknown unit; use B, KiB, MiB, GiB, TiB, PiB, EiB (or kB, MB, GB, TB, PB, EB)")]
    UnknownUnit(String),
    /// More than 2^64 - 1 bytes.
    #[error("`{0}` is too large")]
    TooLarge(String),
    /// A share outside 0 to 100, or without a percent sign.
    #[error("`{0}` is not a share; write for instance `90 %`")]
    NotAShare(String),
}

const BINARY: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const DECIMAL: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];

fn multiplier_of(unit: &str) -> Option<u128> {
    let unit = if unit.is_empty() { "B" } else { unit };
    if let Some(power) = BINARY.iter().position(|name| name.eq_ignore_ascii_case(unit)) {
        return Some(1 << (10 * power));
    }
    if let Some(power) = DECIMAL.iter().position(|name| name.eq_ignore_ascii_case(unit)) {
        return Some(1000_u128.pow(u32::try_from(power).ok()?));
    }
    let power = BINARY.iter().position(|name| name[..1].eq_ignore_ascii_case(unit))?;
    Some(1 << (10 * power))
}

impl FromStr for ByteSize {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let trimmed = text.trim();
        let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let malformed = whole.is_empty() || fraction.contains('.') || (number.contains('.') && fraction.is_empty());
        if malformed || fraction.len() > 9 {
            return Err(UnitError::NoNumber(text.to_owned()));
        }
        let multiplier = multiplier_of(unit.trim()).ok_or_else(|| UnitError::UnknownUnit(text.to_owned()))?;
        let too_large = || UnitError::TooLarge(text.to_owned());
        let whole: u128 = whole.parse().map_err(|_| too_large())?;
        let mut bytes = whole.checked_mul(multiplier).ok_or_else(too_large)?;
        if !fraction.is_empty() {
            let digits: u128 = fraction.parse().map_err(|_| too_large())?;
            let scale = 10_u128.pow(u32::try_from(fraction.len()).map_err(|_| too_large())?);
            bytes += digits * multiplier / scale;
        }
        u64::try_from(bytes).map(ByteSize).map_err(|_| too_large())
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut power = 0;
        while power + 1 < BINARY.len() && self.0 >> (10 * (power + 1)) > 0 {
            power += 1;
        }
        let divisor = 1_u128 << (10 * power);
        let tenths = u128::from(self.0) * 10 / divisor;
        let text = if power == 0 || tenths.is_multiple_of(10) {
            format!("{} {}", tenths / 10, BINARY[power])
        } else {
            format!("{}.{} {}", tenths / 10, tenths % 10, BINARY[power])
        };
        formatter.pad(&text)
    }
}

/// A share of a whole in hundredths, `0..=100`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Percent(u8);

impl Percent {
    /// Builds a share. Panics above 100.
    #[must_use]
    pub const fn new(percent: u8) -> Self {
        assert!(percent <= 100);
        Self(percent)
    }

    /// Its number, from 0 to 100.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// This share of `whole`, rounded down.
    #[must_use]
    pub fn of(self, whole: u64) -> u64 {
        u64::try_from(u128::from(whole) * u128::from(self.0) / 100).expect("a share of a u64 is no larger than it")
    }
}

impl FromStr for Percent {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let number = text.trim().strip_suffix('%').map(str::trim);
        match number.and_then(|number| number.parse::<u8>().ok()) {
            Some(percent) if percent <= 100 => Ok(Self(percent)),
            _ => Err(UnitError::NotAShare(text.to_owned())),
        }
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} %", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("512M", 512 << 20),
            ("512 MiB", 512 << 20),
            ("1.5k", 1536),
            ("2 GB", 2_000_000_000),
            ("5.3 TiB", 5_827_411_627_212),
            (" 15EiB ", 15 << 60),
        ] {
            assert_eq!(text.parse::<ByteSize>(), Ok(ByteSize(bytes)), "{text}");
        }
        assert_eq!("16EiB".parse::<ByteSize>(), Err(UnitError::TooLarge("16EiB".to_owned())));
    }

    #[test]
    fn a_size_that_is_not_plain_is_refused() {
        for text in ["", "GiB", "-1", "1..2", "1.", "1 XiB", "1 %", "0x10"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_share_is_read_only_with_its_percent_sign_and_up_to_a_hundred() {
        assert_eq!("90 %".parse::<Percent>().unwrap().of(1000), 900);
        assert_eq!("90%".parse::<Percent>().unwrap(), Percent::new(90));
        for text in ["90", "101%", "-1%", "%"] {
            assert!(text.parse::<Percent>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_printed_size_reads_back_within_a_tenth_of_its_unit(bytes in 0_u64..(1 << 62)) {
            let printed = ByteSize(bytes).to_string();
            let read = printed.parse::<ByteSize>().unwrap().0;
            prop_assert!(read <= bytes && bytes - read <= bytes / 10 + 1, "{printed}");
        }
    }
}
