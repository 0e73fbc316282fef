//! One state after a crash.
//!
//! Two states with one hash are taken for one state; the hash covers every byte, size, name and record,
//! and no time.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use polymux_tier::Label;
use polymux_types::{Bucket, Clock, ObjectId, Timestamp};

use super::files;
use crate::memory_object::Image;
use crate::recording_file_system;
use crate::{MemoryStore, MemoryTier};

/// Number of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateHash(pub u64);

/// Content of one tier.
#[derive(Clone, Default)]
pub(crate) struct TierState {
    pub(crate) label: Option<Label>,
    pub(crate) objects: BTreeMap<(Bucket, ObjectId), (Image, Timestamp)>,
}

/// Content of all devices after a crash.
#[derive(Clone, Default)]
pub struct State {
    pub(crate) tiers: Vec<TierState>,
    pub(crate) store: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Where the store has files: their content, instead of `store`.
    pub(crate) files: Option<recording_file_system::Image>,
    pub(crate) configuration: Vec<usize>,
}

impl State {
    /// Number of the state.
    #[must_use]
    pub fn hash(&self) -> StateHash {
        let mut hasher = DefaultHasher::new();
        for tier in &self.tiers {
            match &tier.label {
                Some(label) => {
                    (label.volume, label.tier.0, label.epoch.0, label.instance).hash(&mut hasher);
                    format!("{:?}", label.clean).hash(&mut hasher);
                }
                None => 0_u8.hash(&mut hasher),
            }
            tier.objects.len().hash(&mut hasher);
            for (key, (image, _)) in &tier.objects {
                key.hash(&mut hasher);
                image.hash(&mut hasher);
            }
        }
        self.store.hash(&mut hasher);
        self.files.hash(&mut hasher);
        self.configuration.hash(&mut hasher);
        StateHash(hasher.finish())
    }

    /// The tiers that the configuration lists, by their place in the scene.
    #[must_use]
    pub fn configuration(&self) -> &[usize] {
        &self.configuration
    }

    /// A store with the surviving data.
    #[must_use]
    pub fn store(&self) -> MemoryStore {
        MemoryStore::of_image(self.store.clone())
    }

    /// The files of the store and of its second copy, where they were recorded.
    #[must_use]
    pub fn files(&self) -> Option<&recording_file_system::Image> {
        self.files.as_ref()
    }

    /// This state with the device of the store lost; `None` where the store had no files.
    #[must_use]
    pub fn without_store(&self) -> Option<Self> {
        let files = Some(files::without_store(self.files.as_ref()?));
        Some(Self { files, ..self.clone() })
    }

    /// The tier at a place, with this name and capacity in bytes.
    #[must_use]
    pub fn tier(&self, place: usize, name: &str, capacity: u64, clock: Arc<dyn Clock>) -> MemoryTier {
        let kept = &self.tiers[place];
        MemoryTier::of_images(name, capacity, clock, kept.label.clone(), &kept.objects)
    }

    /// A human-readable description of the contents of the tiers.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for (place, tier) in self.tiers.iter().enumerate() {
            for ((bucket, id), (image, _)) in &tier.objects {
                text.push_str(&format!(
                    "  tier {place}, object {:x} in bucket {}: {}\n",
                    id.0,
                    bucket.0,
                    image.describe()
                ));
            }
        }
        text
    }
}
