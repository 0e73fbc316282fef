//! Programs that use a file past the daemon, by a copy of its map (docs/design/0046, docs/design/0048).
//!
//! Invariants:
//! * A user is in the list before its copy is made, and is recalled once, before any change of the map can be seen. It is out of the list from then on.
//! * A user that may write is waited for after its recall, until it has no call under way, before anything else uses the blocks that its lease covers. The wait has a bound: a user
//!   that is stopped in the middle of a write is expired then. Such a write may reach the object at any later moment, and its program makes it again through the kernel. A change of
//!   the map expires users at once; where bytes are copied before it, users are held off from before the copy until after the change.
//! * Bytes of a changing file that a lease covers are below `changing_bytes`, which is fixed before the map is copied.
//! * Between its entry into the list and [`OutsideUsers::settle`] the kernel writes back and forgets the pages that it has of the file. These writes do not recall the new user; whatever
//!   else gives the kernel a page with covered bytes does.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use polymux_types::LeaseRefusal;
use polymux_types::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, thread};

/// Looks at users that may be writing: the first ones follow at once, the others after a pause.
const LOOKS_AT_ONCE: u32 = if cfg!(shuttle) { 2 } else { 200 };
const LOOKS_WITH_PAUSE: u32 = if cfg!(shuttle) { 1 } else { 100 };
const LOOK_PAUSE: Duration = Duration::from_micros(500);

/// A program with a copy of the map.
pub trait OutsideUser: Debug + Send + Sync {
    /// The map, or the bytes of the file, change: the copy is not to be used after this. Never waits.
    fn recall(&self);

    /// Whether it may have a lease for a changing file.
    ///
    /// # Errors
    /// Why not.
    fn admit_to_changes(&self) -> Result<(), LeaseRefusal> {
        Ok(())
    }

    /// Whether it may be writing to an object by a call that began before it was recalled.
    fn may_be_writing(&self) -> bool {
        false
    }

    /// A write that has not ended by now counts as not made. Never waits.
    fn expire(&self) {}

    /// It was waited for in vain.
    fn note_late(&self) {}
}

/// Changes that may happen to a file while a program has a lease on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeasedFor {
    /// Nothing: no description may change the file.
    UnchangedFile,
    /// Programs overwrite its blocks past the mount, and others use it through the mount.
    ChangingFile,
}

/// Changes of the pages that the kernel has of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageChange {
    /// They get bytes of the file.
    Read,
    /// They get bytes that a program writes, which are written at once.
    Written,
    /// They have bytes that a program stored in a mapping, which are written some time later.
    WrittenBack,
}

/// Under the model checker each lock is a chance for others, and a thread that yields would never be the one that goes on.
fn pause_after(look: u32) {
    if cfg!(shuttle) {
        return;
    }
    if look < LOOKS_AT_ONCE {
        thread::yield_now();
    } else {
        thread::sleep(LOOK_PAUSE);
    }
}

#[derive(Debug)]
struct User {
    owner: u64,
    user: Arc<dyn OutsideUser>,
    leased_for: LeasedFor,
    /// Bytes that it may use, of a changing file.
    bytes: u64,
    is_settled: bool,
}

#[derive(Debug, Default)]
struct Users {
    listed: Vec<User>,
    /// Recalled users of a changing file that may be writing.
    leaving: Vec<Arc<dyn OutsideUser>>,
    /// Guards that keep users of a changing file out.
    held_off: u32,
}

/// How writes of a recalled user end that are under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// They are waited for.
    WaitedFor,
    /// They count as not made.
    Expired,
}

/// The users of one file.
#[derive(Debug, Default)]
pub struct OutsideUsers {
    has_any: AtomicBool,
    /// Whether users of a changing file are listed or leaving.
    has_changing: AtomicBool,
    /// Bytes, from the first one on, that these may use past the mount.
    changing_bytes: AtomicU64,
    users: Mutex<Users>,
    /// Users that have not given back their descriptors, recalled ones included.
    holding: AtomicU32,
}

/// While it lives no lease for a changing file is given ([`OutsideUsers::hold_off`]).
#[derive(Debug)]
pub struct HeldOff<'a>(&'a OutsideUsers);

impl Drop for HeldOff<'_> {
    fn drop(&mut self) {
        self.0.users.lock().held_off -= 1;
    }
}

impl OutsideUsers {
    /// Adds a user of an owner, which looks at the map after this, and covers no more than `bytes` bytes if the file changes; `false` where such users are held off. It is given back in
    /// any case. One of a changing file is to be settled.
    pub fn add(&self, owner: u64, user: Arc<dyn OutsideUser>, leased_for: LeasedFor, bytes: u64) -> bool {
        self.holding.fetch_add(1, Ordering::AcqRel);
        let mut users = self.users.lock();
        if leased_for == LeasedFor::ChangingFile {
            if users.held_off > 0 {
                return false;
            }
            self.changing_bytes.fetch_max(bytes, Ordering::SeqCst);
            self.has_changing.store(true, Ordering::SeqCst);
        }
        let is_settled = leased_for == LeasedFor::UnchangedFile;
        users.listed.push(User { owner, user, leased_for, bytes, is_settled });
        self.has_any.store(true, Ordering::SeqCst);
        true
    }

    /// The kernel has no page of the file that is older than this call. Returns whether the user is still on the list.
    pub fn settle(&self, user: &Arc<dyn OutsideUser>) -> bool {
        let mut users = self.users.lock();
        let listed = users.listed.iter_mut().find(|known| Arc::ptr_eq(&known.user, user));
        listed.map(|known| known.is_settled = true).is_some()
    }

    /// Bytes, from the first one on, of which the kernel has no page, because a settled user of a changing file covers them. It may have pages behind them.
    pub fn settled_bytes(&self) -> u64 {
        if !self.may_change() {
            return 0;
        }
        let is_settled = |user: &&User| user.leased_for == LeasedFor::ChangingFile && user.is_settled;
        let users = self.users.lock();
        users.listed.iter().filter(is_settled).map(|user| user.bytes).max().unwrap_or(0)
    }

    /// A user gave back its descriptors, and uses them no more.
    pub fn give_back(&self, user: &Arc<dyn OutsideUser>) {
        let mut users = self.users.lock();
        users.listed.retain(|known| !Arc::ptr_eq(&known.user, user));
        users.leaving.retain(|known| !Arc::ptr_eq(known, user));
        self.note_changing(&users);
        drop(users);
        self.holding.fetch_sub(1, Ordering::AcqRel);
    }

    fn note_changing(&self, users: &MutexGuard<'_, Users>) {
        let is_changing = |user: &User| user.leased_for == LeasedFor::ChangingFile;
        if users.leaving.is_empty() && !users.listed.iter().any(is_changing) {
            self.has_changing.store(false, Ordering::SeqCst);
            self.changing_bytes.store(0, Ordering::SeqCst);
        }
    }

    fn recall_if(&self, is_meant: impl Fn(&User) -> bool, fate: Fate) {
        let mut users = self.users.lock();
        let Users { listed, leaving, .. } = &mut *users;
        listed.retain(|known| {
            if !is_meant(known) {
                return true;
            }
            known.user.recall();
            match (known.leased_for, fate) {
                (LeasedFor::UnchangedFile, _) => {}
                (LeasedFor::ChangingFile, Fate::WaitedFor) => leaving.push(Arc::clone(&known.user)),
                (LeasedFor::ChangingFile, Fate::Expired) => known.user.expire(),
            }
            false
        });
        self.has_any.store(!listed.is_empty(), Ordering::SeqCst);
        self.note_changing(&users);
    }

    /// Recalls all of them, without waiting: the map changes. Writes under way are made again through the kernel.
    pub fn recall_all(&self) {
        if self.has_any.load(Ordering::SeqCst) {
            self.recall_if(|_| true, Fate::Expired);
        }
    }

    /// Recalls those who rely on a file that nothing changes.
    pub fn recall_those_of_unchanged_file(&self) {
        if self.has_any.load(Ordering::SeqCst) {
            self.recall_if(|user| user.leased_for == LeasedFor::UnchangedFile, Fate::WaitedFor);
        }
    }

    /// Recalls those of an owner; [`Self::await_writes`] waits for their writes.
    pub fn recall_those_of(&self, owner: u64) {
        self.recall_if(|user| user.owner == owner, Fate::WaitedFor);
    }

    /// Whether bytes from an offset on may be changing past the mount.
    #[inline]
    pub fn may_change_from(&self, offset: u64) -> bool {
        offset < self.changing_bytes.load(Ordering::SeqCst)
    }

    /// Whether any bytes may be.
    #[inline]
    pub fn may_change(&self) -> bool {
        self.has_changing.load(Ordering::SeqCst)
    }

    /// Recalls those of a changing file, and waits until none of them writes. Returns whether there were any.
    pub fn end_changes(&self, change: PageChange) -> bool {
        if !self.may_change() {
            return false;
        }
        let is_meant = |user: &User| {
            user.leased_for == LeasedFor::ChangingFile && (user.is_settled || change != PageChange::WrittenBack)
        };
        self.recall_if(is_meant, Fate::WaitedFor);
        self.await_writes();
        true
    }

    /// Ends changes, and admits no user of a changing file while the returned guard lives.
    pub fn hold_off(&self) -> HeldOff<'_> {
        self.users.lock().held_off += 1;
        let held_off = HeldOff(self);
        self.end_changes(PageChange::Written);
        held_off
    }

    /// Waits until no user that is recalled by now writes, or has been waited for long enough.
    pub fn await_writes(&self) {
        let waited_for = self.users.lock().leaving.clone();
        for look in 0..LOOKS_AT_ONCE + LOOKS_WITH_PAUSE {
            let mut users = self.users.lock();
            users.leaving.retain(|user| user.may_be_writing());
            if !users.leaving.iter().any(|user| is_among(user, &waited_for)) {
                self.note_changing(&users);
                return;
            }
            drop(users);
            pause_after(look);
        }
        let mut users = self.users.lock();
        users.leaving.retain(|user| {
            if !user.may_be_writing() {
                return false;
            }
            let is_late = is_among(user, &waited_for);
            if is_late {
                user.expire();
                user.note_late();
            }
            !is_late
        });
        self.note_changing(&users);
    }

    /// Whether a user is on the list, which means that it was not recalled.
    pub fn list(&self, user: &Arc<dyn OutsideUser>) -> bool {
        self.users.lock().listed.iter().any(|known| Arc::ptr_eq(&known.user, user))
    }

    /// Whether a user, recalled or not, may have objects open.
    pub fn hold_objects(&self) -> bool {
        self.holding.load(Ordering::Acquire) > 0
    }
}

fn is_among(user: &Arc<dyn OutsideUser>, users: &[Arc<dyn OutsideUser>]) -> bool {
    users.iter().any(|other| Arc::ptr_eq(other, user))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[derive(Debug, Default)]
    struct Recalls {
        recalls: AtomicU32,
        writes: AtomicU32,
        expiries: AtomicU32,
        lateness: AtomicU32,
    }

    impl OutsideUser for Recalls {
        fn recall(&self) {
            self.recalls.fetch_add(1, Ordering::SeqCst);
        }

        fn may_be_writing(&self) -> bool {
            self.writes.load(Ordering::SeqCst) > 0
        }

        fn expire(&self) {
            self.expiries.fetch_add(1, Ordering::SeqCst);
        }

        fn note_late(&self) {
            self.lateness.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn counts<const COUNT: usize>(users: [&Arc<Recalls>; COUNT]) -> [u32; COUNT] {
        users.map(|user| user.recalls.load(Ordering::SeqCst))
    }

    #[test]
    fn each_user_is_recalled_once_and_one_that_left_is_not() {
        let users = OutsideUsers::default();
        let [stays, leaves, others] = [(); 3].map(|()| Arc::new(Recalls::default()));
        let add = |owner, user: &Arc<Recalls>| users.add(owner, user.clone(), LeasedFor::UnchangedFile, 10);
        add(1, &stays);
        add(1, &leaves);
        add(2, &others);
        let [staying, leaving, of_other]: [Arc<dyn OutsideUser>; 3] = [stays.clone(), leaves.clone(), others.clone()];
        users.give_back(&leaving);
        users.recall_those_of(2);
        assert_eq!(counts([&stays, &leaves, &others]), [0, 0, 1]);
        assert!(!users.may_change());
        users.recall_all();
        users.recall_all();
        assert_eq!(counts([&stays, &leaves, &others]), [1, 0, 1]);
        assert!(users.hold_objects(), "two have not given theirs back");
        users.give_back(&staying);
        users.give_back(&of_other);
        assert!(!users.hold_objects());
    }

    #[test]
    fn uses_through_the_mount_end_leases_of_a_changing_file_alone_and_pages_written_back_for_a_grant_do_not() {
        let users = OutsideUsers::default();
        let [unchanged, changing, settling] = [(); 3].map(|()| Arc::new(Recalls::default()));
        assert!(users.add(1, unchanged.clone(), LeasedFor::UnchangedFile, 0));
        assert!(users.add(2, changing.clone(), LeasedFor::ChangingFile, 4096));
        assert!(users.add(3, settling.clone(), LeasedFor::ChangingFile, 8192));
        assert_eq!(users.settled_bytes(), 0);
        let as_user: Arc<dyn OutsideUser> = changing.clone();
        assert!(users.settle(&as_user));
        assert_eq!(users.settled_bytes(), 4096, "of later bytes the kernel may have pages");
        assert!(users.may_change_from(8191) && !users.may_change_from(8192), "appends end no lease");
        users.end_changes(PageChange::WrittenBack);
        assert_eq!(counts([&unchanged, &changing, &settling]), [0, 1, 0]);
        users.end_changes(PageChange::Read);
        assert_eq!(counts([&unchanged, &changing, &settling]), [0, 1, 1]);
        let as_user: Arc<dyn OutsideUser> = settling.clone();
        assert!(!users.settle(&as_user), "it was recalled while it was given");
        assert!(!users.may_change());
        users.recall_those_of_unchanged_file();
        assert_eq!(counts([&unchanged, &changing, &settling]), [1, 1, 1]);
    }

    #[test]
    fn writes_under_way_are_waited_for_and_those_that_do_not_end_are_expired() {
        let users = Arc::new(OutsideUsers::default());
        let [quick, stopped] = [(); 2].map(|()| Arc::new(Recalls::default()));
        for user in [&quick, &stopped] {
            user.writes.store(1, Ordering::SeqCst);
        }
        users.add(1, quick.clone(), LeasedFor::ChangingFile, 0);
        users.recall_those_of(1);
        assert!(users.may_change(), "it may be writing although it was recalled, and covers nothing");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| users.end_changes(PageChange::Read));
            std::thread::sleep(Duration::from_millis(5));
            assert!(!waits.is_finished());
            quick.writes.store(0, Ordering::SeqCst);
        });
        assert_eq!(quick.expiries.load(Ordering::SeqCst), 0);
        users.add(1, stopped.clone(), LeasedFor::ChangingFile, 4096);
        users.end_changes(PageChange::Read);
        assert_eq!(stopped.expiries.load(Ordering::SeqCst), 1);
        assert_eq!(stopped.lateness.load(Ordering::SeqCst), 1);
        assert!(!users.may_change());
    }

    #[test]
    fn a_change_of_the_map_waits_for_no_write_and_believes_none() {
        let (users, writes) = (OutsideUsers::default(), Arc::new(Recalls::default()));
        writes.writes.store(1, Ordering::SeqCst);
        users.add(1, writes.clone(), LeasedFor::ChangingFile, 4096);
        users.recall_all();
        assert_eq!((writes.expiries.load(Ordering::SeqCst), writes.lateness.load(Ordering::SeqCst)), (1, 0));
        assert!(!users.may_change());
    }

    #[test]
    fn users_that_are_held_off_come_in_again_afterwards() {
        let (users, user) = (OutsideUsers::default(), Arc::new(Recalls::default()));
        assert!(users.add(1, user.clone(), LeasedFor::ChangingFile, 4096));
        let held_off = users.hold_off();
        assert_eq!(counts([&user]), [1]);
        let late = Arc::new(Recalls::default());
        assert!(!users.add(1, late.clone(), LeasedFor::ChangingFile, 4096));
        assert!(users.add(2, late.clone(), LeasedFor::UnchangedFile, 0), "the others are not concerned");
        drop(held_off);
        assert!(users.add(3, late, LeasedFor::ChangingFile, 4096));
    }
}
