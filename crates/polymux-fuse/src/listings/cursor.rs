//! Where a listing goes on, as the offset that the kernel keeps for an open directory and gives to programs (`telldir(3)`).

use polymux_types::Errno;

/// Bits of an offset that name a group. With as few, directories in which eight million names were made have offsets that programs of 32 bits accept.
const GROUP_BITS: u32 = 8;

/// Positions of names follow those of `.` and `..`.
const COOKIE_SHIFT: u64 = 2;

/// Listings of a directory that began with the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group(u16);

impl Group {
    /// How many there are.
    pub(crate) const COUNT: u64 = 1 << GROUP_BITS;

    /// One of them.
    pub(crate) fn of(number: u64) -> Self {
        Self(u16::try_from(number % Self::COUNT).expect("there are no more groups"))
    }

    pub(crate) fn next(self) -> Self {
        Self::of(u64::from(self.0) + 1)
    }
}

/// A place in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) group: Group,
    /// Number of the entry before it, in the order of the directory.
    position: u64,
}

impl Cursor {
    pub(crate) fn beginning(group: Group) -> Self {
        Self { group, position: 0 }
    }

    /// After the entry `.`.
    pub(crate) fn after_dot(group: Group) -> Self {
        Self { group, position: 1 }
    }

    /// After the entry `..`.
    pub(crate) fn after_dot_dot(group: Group) -> Self {
        Self { group, position: COOKIE_SHIFT }
    }

    /// After the entry with this cookie.
    ///
    /// # Errors
    /// `EOVERFLOW` for a cookie that no offset can name, which is a broken promise of the file system.
    pub(crate) fn after(group: Group, cookie: u64) -> Result<Self, Errno> {
        Ok(Self { group, position: cookie.checked_add(COOKIE_SHIFT).ok_or(Errno::EOVERFLOW)? })
    }

    /// The cookie after which names follow; 0 where all of them do.
    pub(crate) fn cookie(self) -> u64 {
        self.position.saturating_sub(COOKIE_SHIFT)
    }

    pub(crate) fn is_before(self, other: Self) -> bool {
        self.position < other.position
    }

    /// The place that an offset stands for; `None` for 0, with which listings begin. Offsets that are too small to have a group come from a daemon of
    /// before there were any, or from nowhere.
    pub(crate) fn of(offset: u64) -> Option<Self> {
        match (offset / Group::COUNT, offset % Group::COUNT) {
            (0, 0) => None,
            (0, position) => Some(Self { group: Group::of(0), position }),
            (position, group) => Some(Self { group: Group::of(group), position }),
        }
    }

    /// # Errors
    /// `EOVERFLOW` where there is none.
    pub(crate) fn offset(self) -> Result<u64, Errno> {
        let first = self.position.checked_mul(Group::COUNT).ok_or(Errno::EOVERFLOW)?;
        let offset = first + u64::from(self.group.0);
        // Offsets are signed in `lseek(2)`.
        i64::try_from(offset).map(|_| offset).map_err(|_| Errno::EOVERFLOW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_go_back_to_their_places() {
        for group in [0, 5, 255].map(Group::of) {
            let names = [1, 2, 3, 1 << 40].map(|cookie| Cursor::after(group, cookie).unwrap());
            for cursor in [Cursor::after_dot(group), Cursor::after_dot_dot(group)].into_iter().chain(names) {
                assert_eq!(Cursor::of(cursor.offset().unwrap()), Some(cursor));
            }
            assert!(names.iter().all(|cursor| Cursor::after_dot_dot(group).is_before(*cursor)));
            assert_eq!(names.map(Cursor::cookie), [1, 2, 3, 1 << 40]);
            assert_eq!(Cursor::after_dot_dot(group).cookie(), 0);
        }
        assert_eq!(Cursor::of(0), None);
        assert_eq!(Cursor::of(7).map(Cursor::cookie), Some(5), "it has no group");
        for cookie in [1 << 55, u64::MAX] {
            assert_eq!(Cursor::after(Group::of(0), cookie).and_then(Cursor::offset), Err(Errno::EOVERFLOW));
        }
    }

    #[test]
    fn programs_of_32_bits_accept_offsets_of_directories_in_which_eight_million_names_were_made() {
        let last = Cursor::after(Group::of(Group::COUNT - 1), (8 << 20) - 3).unwrap();
        assert!(i32::try_from(last.offset().unwrap()).is_ok());
    }
}
