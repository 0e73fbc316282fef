//! Lengths of time and hours of the week, as a configuration writes them: `30 d`, `Mon-Fri 01:00-06:00`.
//!
//! Invariant: a value is written back in the words in which it was read.

use polymux_fs::MoveWindow;
use serde::{Deserialize, Serialize};

/// Names of units of time and their seconds, the longest first.
const UNITS: [(&str, u64); 5] = [("w", 604_800), ("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)];

/// Names of the days; the first is bit 0 of [`MoveWindow::days`].
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// A length of time such as `12 h`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TimeSpan {
    text: String,
    /// Length in seconds.
    pub seconds: u64,
}

impl TryFrom<String> for TimeSpan {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let seconds = seconds_of(&text).ok_or_else(|| {
            format!("`{text}` is not a length of time; write for instance `30 d`, `12 h` or `90 min`")
        })?;
        Ok(Self { text, seconds })
    }
}

impl From<TimeSpan> for String {
    fn from(span: TimeSpan) -> Self {
        span.text
    }
}

impl std::fmt::Display for TimeSpan {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(&self.text)
    }
}

fn seconds_of(text: &str) -> Option<u64> {
    let trimmed = text.trim();
    let end = trimmed.find(|character: char| !character.is_ascii_digit())?;
    let number: u64 = trimmed[..end].parse().ok()?;
    let unit = trimmed[end..].trim();
    let (_, seconds) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
    number.checked_mul(seconds)
}

/// Hours of the week in which movers work, such as `Mon-Fri 01:00-06:00`; without days, on all of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct WindowEntry {
    text: String,
    /// Window in the form that the file system takes.
    pub window: MoveWindow,
}

impl TryFrom<String> for WindowEntry {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let window = window_of(&text).map_err(|why| {
            format!("`{text}` is not a window of time: {why}; write for instance `Mon-Fri 01:00-06:00`")
        })?;
        Ok(Self { text, window })
    }
}

impl From<WindowEntry> for String {
    fn from(entry: WindowEntry) -> Self {
        entry.text
    }
}

fn window_of(text: &str) -> Result<MoveWindow, String> {
    let mut words = text.split_whitespace();
    let (days, hours) = match (words.next(), words.next(), words.next()) {
        (Some(days), Some(hours), None) => (days_of(days)?, hours),
        (Some(hours), None, None) if hours.contains(':') => (0b111_1111, hours),
        (Some(_), None, None) => return Err("it has no hours".to_owned()),
        _ => return Err("it is not days and hours".to_owned()),
    };
    let (from, to) = hours.split_once('-').ok_or("the hours have no `-`")?;
    let (from, to) = (minute_of(from)?, minute_of(to)?);
    if from == 1440 {
        return Err("no day begins at 24:00".to_owned());
    }
    if from == to {
        return Err(format!("it opens and shuts at {}; a whole day is 00:00-24:00", &hours[..5]));
    }
    // The end of the day is the beginning of the next one, and a window that ends at or before its start ends on the next day.
    Ok(MoveWindow { days, from_minute: from, to_minute: to % 1440 })
}

/// `Mon-Fri`, `Sat,Sun`, `Fri-Mon,Wed`.
fn days_of(text: &str) -> Result<u8, String> {
    let number = |name: &str| {
        let found = DAYS.iter().position(|day| day.eq_ignore_ascii_case(name));
        found.ok_or_else(|| format!("there is no day `{name}` (there are {})", DAYS.join(", ")))
    };
    let mut days = 0;
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (mut day, last) = (number(first)?, number(last)?);
        loop {
            days |= 1 << day;
            if day == last {
                break;
            }
            day = (day + 1) % DAYS.len();
        }
    }
    Ok(days)
}

/// Minute of the day of `HH:MM`, up to 24:00.
fn minute_of(text: &str) -> Result<u16, String> {
    let parts = text.split_once(':').filter(|(hours, minutes)| {
        hours.len() == 2 && minutes.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b':')
    });
    let minute = parts.and_then(|(hours, minutes)| {
        let (hours, minutes) = (hours.parse::<u16>().ok()?, minutes.parse::<u16>().ok()?);
        (minutes < 60 && hours * 60 + minutes <= 1440).then_some(hours * 60 + minutes)
    });
    minute.ok_or_else(|| format!("`{text}` is no time of the day (00:00 to 24:00)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(text: &str) -> Option<u64> {
        TimeSpan::try_from(text.to_owned()).ok().map(|span| span.seconds)
    }

    #[test]
    fn lengths_of_time_have_a_number_and_a_unit() {
        for (text, expected) in
            [("30 d", 2_592_000), ("12h", 43_200), ("90 min", 5400), ("5 s", 5), (" 2 w ", 1_209_600)]
        {
            assert_eq!(seconds(text), Some(expected), "{text}");
        }
        for text in ["", "30", "d", "1.5 h", "-1 d", "3 months", "30 D", "999999999999999999 w"] {
            assert_eq!(seconds(text), None, "{text}");
        }
        assert_eq!(String::from(TimeSpan::try_from("12 h".to_owned()).unwrap()), "12 h");
    }

    fn window(text: &str) -> Result<(u8, u16, u16), String> {
        let window = WindowEntry::try_from(text.to_owned())?.window;
        Ok((window.days, window.from_minute, window.to_minute))
    }

    #[test]
    fn windows_have_days_and_hours() {
        assert_eq!(window("Mon-Fri 01:00-06:00"), Ok((0b001_1111, 60, 360)));
        assert_eq!(window("Sat,Sun 00:00-24:00"), Ok((0b110_0000, 0, 0)), "shuts when the next day begins");
        assert_eq!(window("fri-mon 22:30-06:00"), Ok((0b111_0001, 1350, 360)), "over the end of the week and the day");
        assert_eq!(window("01:00-02:00"), Ok((0b111_1111, 60, 120)));
        assert_eq!(window("Wed 23:00-24:00"), Ok((0b000_0100, 1380, 0)));
    }

    #[test]
    fn what_is_no_window_is_refused_with_the_reason() {
        for (text, needle) in [
            ("", "not days and hours"),
            ("Mon-Fri", "no hours"),
            ("Mo-Fr 01:00-02:00", "no day `Mo`"),
            ("Mon 1:00-2:00", "no time of the day"),
            ("Mon 01:00-25:00", "no time of the day"),
            ("Mon 01:60-02:00", "no time of the day"),
            ("Mon 24:00-02:00", "24:00"),
            ("Mon 06:00-06:00", "00:00-24:00"),
            ("Mon 01:00", "no `-`"),
            ("Mon 01:00 - 02:00", "not days and hours"),
        ] {
            let error = window(text).unwrap_err();
            assert!(error.contains(needle) && error.contains("Mon-Fri 01:00-06:00"), "{text}: {error}");
        }
    }
}
