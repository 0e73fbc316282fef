//! Short-lived files: create, close, unlink.

use std::fs::{self, File};
use std::time::Instant;

use anyhow::Result;

use super::access;
use crate::suite::durable;
use crate::suite::figure::Figure;
use crate::suite::ground::{Ground, Kind};
use crate::suite::sides::Tier;
use crate::suite::workload::{Place, Routes, Scale, Workload};
use crate::throttled::Format;

/// Files that live for a moment.
pub struct CreateUnlink;

impl Workload for CreateUnlink {
    fn name(&self) -> &'static str {
        "create-unlink"
    }

    fn about(&self) -> &'static str {
        "create + close + unlink of an empty file, one after the other"
    }

    fn ends_with(&self) -> &'static str {
        durable::IN_WORDS
    }

    fn figures(&self) -> &'static [Figure] {
        const { &[Figure::us("create + close + unlink")] }
    }

    fn grounds(&self, _: Scale) -> Vec<Ground> {
        vec![Ground::one(Kind::Memory, Format::Ext4)]
    }

    fn routes(&self) -> Routes {
        Routes::Transports
    }

    fn measure(&self, place: &Place) -> Result<Vec<f64>> {
        let directory = place.directory(Tier::First)?;
        let count = place.scale.choose(500, 5_000);
        let names: Vec<_> = (0..count).map(|number| directory.join(format!("f{number}"))).collect();
        let begun = Instant::now();
        for name in &names {
            File::create_new(name)?;
            fs::remove_file(name)?;
        }
        place.end_durably()?;
        let figure = access::us_each(begun, count);
        durable::forget_end(&directory)?;
        Ok(vec![figure])
    }
}
