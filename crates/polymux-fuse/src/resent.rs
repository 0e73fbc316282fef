//! Requests that the kernel sends again, because an earlier daemon read them and died before it answered (docs/design/0037).
//!
//! Facts that this module relies on:
//! * It is not known whether the earlier daemon carried one out. Most can be carried out twice: everything between both times was concurrent
//!   with the request.
//! * Names are different: a created name exists already, and a removed one is missing. But the kernel holds the lock of the directory until the
//!   request is answered, and it looked at the name under that lock. So an operation whose outcome is there already was carried out by the
//!   earlier daemon, and is answered so.
//! * Where the states before and after look the same (two names are exchanged, an attribute may have existed before), the fact that decides
//!   is recorded before the operation (`open_files`).

use polymux_fs::{Attributes, FileSystem};
use polymux_transport::wire::{Attr, Header};
use polymux_types::{Errno, Ino};

use crate::adapter::{Adapter, caller};
use crate::names::is_missing_name;
use crate::open_files::Fact;

/// Whether a resent operation is still to be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It was not carried out.
    Due,
    /// An earlier daemon carried it out.
    Done,
}

/// The inode that a name stands for; `None` where it does not exist.
fn named(fs: &FileSystem, header: &Header, parent: Ino, name: &[u8]) -> polymux_fs::Result<Option<Attributes>> {
    match fs.lookup(&caller(header), parent, name) {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_missing_name(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Standing {
    /// Carries the operation out where it is due.
    pub(crate) fn carry_out(self, operation: impl FnOnce() -> polymux_fs::Result<()>) -> polymux_fs::Result<()> {
        match self {
            Self::Due => operation(),
            Self::Done => Ok(()),
        }
    }
}

impl Adapter {
    /// The entry of a name that a request gives to an inode: `make` does so, unless an earlier daemon did.
    pub(crate) fn make_once(
        fs: &FileSystem,
        header: &Header,
        name: &[u8],
        make: impl FnOnce() -> polymux_fs::Result<Attributes>,
    ) -> polymux_fs::Result<Attr> {
        let made = match Self::made_before(fs, header, name)? {
            Some(made) => made,
            None => make()?,
        };
        Ok(Self::entry(fs, &made))
    }

    /// The inode to which an earlier daemon gave a name for a request that does so.
    pub(crate) fn made_before(fs: &FileSystem, header: &Header, name: &[u8]) -> polymux_fs::Result<Option<Attributes>> {
        if header.is_resent() { named(fs, header, Ino(header.node), name) } else { Ok(None) }
    }

    /// Whether a name that a request takes away is still there.
    pub(crate) fn removal(fs: &FileSystem, header: &Header, name: &[u8]) -> polymux_fs::Result<Standing> {
        if !header.is_resent() {
            return Ok(Standing::Due);
        }
        Ok(named(fs, header, Ino(header.node), name)?.map_or(Standing::Done, |_| Standing::Due))
    }

    /// Whether an operation is due that changes the inode of a name without taking the name away. Records the previous inode of the name first.
    pub(crate) fn exchange(&self, fs: &FileSystem, header: &Header, name: &[u8]) -> polymux_fs::Result<Standing> {
        if !self.open_files.are_kept() {
            return Ok(Standing::Due);
        }
        let now = named(fs, header, Ino(header.node), name)?.map_or(0, |attributes| attributes.ino.get());
        self.standing(header, Fact(now), |before| before.0 != now)
    }

    /// Whether a change of an extended attribute is due whose outcome depends on whether it existed, and ends in `outcome`.
    pub(crate) fn attribute_change(
        &self,
        fs: &FileSystem,
        header: &Header,
        name: &[u8],
        outcome: Existence,
    ) -> polymux_fs::Result<Standing> {
        if !self.open_files.are_kept() {
            return Ok(Standing::Due);
        }
        let now = match fs.xattr(&caller(header), Ino(header.node), name) {
            Ok(_) => Existence::Exists,
            Err(error) if error.errno() == Errno::ENODATA => Existence::IsMissing,
            Err(error) => return Err(error),
        };
        self.standing(header, Fact(now.number()), |before| before.0 != outcome.number() && now == outcome)
    }

    /// Whether an operation is due. `is_done` decides from the fact recorded before it whether it was carried out.
    fn standing(&self, header: &Header, now: Fact, is_done: impl FnOnce(Fact) -> bool) -> polymux_fs::Result<Standing> {
        let before = if header.is_resent() { self.open_files.fact_of(header.number()) } else { None };
        // Once more where they are known: the daemon after this one may be asked as well.
        self.open_files.note_fact(header.number(), before.unwrap_or(now)).map_err(|error| {
            log::error!("what is true before an operation cannot be put on record: {error}");
            Errno::ENOMEM
        })?;
        Ok(if before.is_some_and(is_done) { Standing::Done } else { Standing::Due })
    }
}

/// Whether an extended attribute exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existence {
    Exists,
    IsMissing,
}

impl Existence {
    fn number(self) -> u64 {
        match self {
            Self::Exists => 1,
            Self::IsMissing => 0,
        }
    }
}
