//! Which policy and which tiers hold for a file: its pin, else the first rule that matches, else the volume's policy.
//!
//! Invariants:
//! * A pin is an extended attribute of a file or of a directory above it; the nearest one counts. It names the tier by its
//!   name; one that names no tier is passed over.
//! * Where there are neither rules nor attributes, nothing is looked up.

use std::sync::atomic::Ordering;

use polymux_policy::{FileFacts, PassthroughUse, PolicyKind, RuleSet};
use polymux_records::error::Result;
use polymux_records::parts::Promotion;
use polymux_types::{Ino, TierId};
use polymux_volume::inode::Inode;

use crate::placement::Placement;

/// The extended attribute that pins a file, or everything below a directory, to the tier that it names.
pub const PIN_ATTRIBUTE: &[u8] = b"trusted.polymux.pin";

/// Directories above a file that are looked at.
const DEPTH_MAX: usize = 256;

/// The configuration of placement and movement.
#[derive(Clone, Debug, Default)]
pub struct Steering {
    /// The policy of the volume.
    pub policy: PolicyKind,
    /// Rules in the order of the configuration: the first that matches a file holds.
    pub rules: RuleSet,
}

/// Why a file is steered as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContextSource {
    /// Neither a pin nor a rule concerns it.
    Volume,
    /// The rule of this index, and its name.
    Rule(usize, String),
    /// A pin on this inode.
    Pin(Ino),
}

/// The placement settings of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// The policy that decides for the file.
    pub policy: PolicyKind,
    /// Bit set of tiers.
    pub allowed: u64,
    /// Tiers in the order that a rule prefers.
    pub preferred: Vec<u16>,
    /// Where these settings come from.
    pub source: ContextSource,
}

impl Context {
    /// Whether a tier may hold the file.
    pub fn allows(&self, tier: TierId) -> bool {
        self.allowed.checked_shr(u32::from(tier.0)).is_some_and(|bits| bits & 1 == 1)
    }
}

impl Placement {
    /// Whether files of a policy move up at once where that pays back.
    pub fn promotes_promptly(&self, policy: PolicyKind) -> bool {
        self.volume.options.promotion == Promotion::Prompt && policy.relieves()
    }

    /// Whether there may be a file with a policy of that kind.
    pub fn may_promote_promptly(&self) -> bool {
        let steering = self.steering.read();
        self.promotes_promptly(steering.policy) || steering.rules.rules().next().is_some()
    }

    /// The placement settings of a file. If the metadata cannot be read, those of the volume: placement is never worth
    /// an error.
    pub fn context_of(&self, inode: &Inode) -> Context {
        let found = self.pinned_context(inode).and_then(|pinned| match pinned {
            Some(context) => Ok(context),
            None => self.ruled_context(inode),
        });
        found.unwrap_or_else(|error| {
            log::warn!("inode {}: rules and pins are passed over: {error}", inode.ino);
            self.context_of_volume()
        })
    }

    fn context_of_volume(&self) -> Context {
        let policy = self.steering.read().policy;
        Context { policy, allowed: u64::MAX, preferred: Vec::new(), source: ContextSource::Volume }
    }

    fn pinned_context(&self, inode: &Inode) -> Result<Option<Context>> {
        // Most volumes have no pins, and the way up to the root takes a look into the store for each new file.
        if self.pins.has_none() {
            return Ok(None);
        }
        let mut present = inode.ino;
        let mut lacks_xattrs = inode.lacks_xattrs.load(Ordering::Acquire);
        for _ in 0..DEPTH_MAX {
            let pinned = if lacks_xattrs { None } else { self.pin_of(present)? };
            if let Some(tier) = pinned {
                let policy = self.steering.read().policy;
                let context = Context {
                    policy,
                    allowed: 1_u64.checked_shl(u32::from(tier.0)).unwrap_or(u64::MAX),
                    preferred: vec![tier.0],
                    source: ContextSource::Pin(present),
                };
                return Ok(Some(context));
            }
            if present == Ino::ROOT {
                break;
            }
            let Some(parent) = self.parent_of_any(present, inode)? else { break };
            let directory = self.volume.inode(parent)?;
            lacks_xattrs = directory.lacks_xattrs.load(Ordering::Acquire);
            present = parent;
        }
        Ok(None)
    }

    /// A directory in which an inode lies.
    fn parent_of_any(&self, ino: Ino, start: &Inode) -> Result<Option<Ino>> {
        if ino == start.ino && !start.is_directory() {
            let made_in = start.parent.load(Ordering::Relaxed);
            return match made_in {
                0 => Ok(self.volume.metadata.any_name(ino)?.map(|(parent, _)| parent)),
                known => Ok(Some(Ino(known))),
            };
        }
        let directory = self.volume.inode(ino)?;
        Ok(directory.is_directory().then(|| directory.parent()))
    }

    /// The tier that the attribute of one inode names.
    pub(crate) fn pin_of(&self, ino: Ino) -> Result<Option<TierId>> {
        let Some(name) = self.volume.metadata.xattr(ino, PIN_ATTRIBUTE)? else { return Ok(None) };
        let name = String::from_utf8_lossy(&name);
        let found = self.volume.tiers.by_name(&name).map(|tier| tier.id);
        if found.is_none() {
            log::debug!("inode {ino} is pinned to `{name}`, and there is no such tier");
        }
        Ok(found)
    }

    /// The settings of a file by the first rule that matches, else by the volume; pins are not looked at.
    pub fn ruled_context(&self, inode: &Inode) -> Result<Context> {
        let steering = self.steering.read().clone();
        if steering.rules.rules().next().is_none() {
            return Ok(self.context_of_volume());
        }
        let path =
            if steering.rules.needs_path() { self.volume.path_of(inode.ino)?.unwrap_or_default() } else { Vec::new() };
        let (uid, gid, modified) = {
            let common = inode.common.read();
            (common.uid, common.gid, common.modified)
        };
        let size = inode.file().map_or(0, |file| file.size());
        let xattr = |name: &[u8]| self.volume.metadata.xattr(inode.ino, name).ok().flatten();
        let facts = FileFacts {
            path: &path,
            size,
            age_seconds: seconds_between(modified, self.volume.now()),
            uid,
            gid,
            xattr: &xattr,
        };
        let Some((index, rule)) = steering.rules.first_match(&facts) else { return Ok(self.context_of_volume()) };
        Ok(Context {
            policy: rule.policy.unwrap_or(steering.policy),
            allowed: rule.allowed(),
            preferred: rule.tiers.clone(),
            source: ContextSource::Rule(index, rule.name.clone()),
        })
    }

    /// The passthrough setting of the first rule that matches. A pin does not set it.
    pub(crate) fn ruled_passthrough(&self, inode: &Inode) -> Result<Option<PassthroughUse>> {
        let ContextSource::Rule(index, _) = self.ruled_context(inode)?.source else { return Ok(None) };
        Ok(self.steering.read().rules.rules().nth(index).and_then(|rule| rule.passthrough))
    }

    /// Replaces policy and rules.
    pub fn steer(&self, steering: Steering) {
        let may_spread = steering.policy.spreads()
            || steering.rules.rules().any(|rule| rule.policy.is_some_and(PolicyKind::spreads));
        let mut present = self.steering.write();
        self.may_spread.store(may_spread, Ordering::Release);
        self.has_spread.fetch_or(may_spread, Ordering::AcqRel);
        *present = std::sync::Arc::new(steering);
    }
}

/// Whole seconds from one moment to a later one.
pub fn seconds_between(earlier: polymux_types::Timestamp, later: polymux_types::Timestamp) -> u64 {
    u64::try_from(later.seconds.saturating_sub(earlier.seconds)).unwrap_or(0)
}
