//! Destination and format of log lines.
//!
//! Invariant: under systemd (`JOURNAL_STREAM` is set) lines carry no time, because the journal adds its own, and begin
//! with the priority that it reads (`<3>` for an error).

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use log::Level;

/// Sends log lines to standard error, at the level of `POLYMUX_LOG` (default: `info`).
pub fn start() {
    let journal = std::env::var_os("JOURNAL_STREAM").is_some();
    let filter = std::env::var("POLYMUX_LOG").unwrap_or_else(|_| "info,lsm_tree=warn".to_owned());
    // A second call (in a test) keeps the first logger.
    let _ = env_logger::Builder::new()
        .parse_filters(&filter)
        .format(move |buffer, record| {
            if journal {
                writeln!(buffer, "<{}>{}", priority_of(record.level()), record.args())
            } else {
                let time = utc(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()));
                writeln!(buffer, "{time} {:5} {}: {}", record.level(), record.target(), record.args())
            }
        })
        .try_init();
}

fn priority_of(level: Level) -> u8 {
    match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    }
}

/// Seconds since 1970 as `2026-01-31T23:59:59Z`.
fn utc(seconds: u64) -> String {
    let (days, in_day) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that the leap day is the last one; 719,468 days lie between 0000-03-01 and 1970.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", in_day / 3600, in_day / 60 % 60, in_day % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }
}
