//! Programs that use a file past the daemon, by a copy of its map (docs/design/0046, docs/design/0048).
//!
//! Invariants:
//! * A user is in the list before its copy is made, and is recalled once, before any change of the map can be seen. It is out of the list from then on.
//! * A user that may write is waited for after its recall, until it has no call under way, before anything else uses the blocks that its lease covers. The wait has a bound: a user
//!   that is stopped in the middle of a write is expired then. Such a write may reach the object at any later moment, and its program makes it again through the kernel.
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

    /// It is waited for no more: a write that has not ended by now counts as not made. Never waits.
    fn expire(&self) {}
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
    is_settled: bool,
}

#[derive(Debug, Default)]
struct Users {
    listed: Vec<User>,
    /// Recalled users of a changing file that may be writing.
    leaving: Vec<Arc<dyn OutsideUser>>,
}

/// The users of one file.
#[derive(Debug, Default)]
pub struct OutsideUsers {
    has_any: AtomicBool,
    /// Bytes, from the first one on, that users of a changing file may use past the mount; 0 where there are none.
    changing_bytes: AtomicU64,
    users: Mutex<Users>,
    /// Users that have not given back their descriptors, recalled ones included.
    holding: AtomicU32,
}

impl OutsideUsers {
    /// Adds a user of an owner, which looks at the map after this. It is given back in any case. One of a changing file covers up to `bytes` bytes, and is to be settled.
    pub fn add(&self, owner: u64, user: Arc<dyn OutsideUser>, leased_for: LeasedFor, bytes: u64) {
        self.holding.fetch_add(1, Ordering::AcqRel);
        let mut users = self.users.lock();
        users.listed.push(User { owner, user, leased_for, is_settled: leased_for == LeasedFor::UnchangedFile });
        self.has_any.store(true, Ordering::SeqCst);
        if leased_for == LeasedFor::ChangingFile {
            self.changing_bytes.fetch_max(bytes, Ordering::SeqCst);
        }
    }

    /// The kernel has no page of the file that is older than this call. Returns whether the user is still on the list.
    pub fn settle(&self, user: &Arc<dyn OutsideUser>) -> bool {
        let mut users = self.users.lock();
        let listed = users.listed.iter_mut().find(|known| Arc::ptr_eq(&known.user, user));
        listed.map(|known| known.is_settled = true).is_some()
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
            self.changing_bytes.store(0, Ordering::SeqCst);
        }
    }

    fn recall_if(&self, is_meant: impl Fn(&User) -> bool) {
        let mut users = self.users.lock();
        let Users { listed, leaving } = &mut *users;
        listed.retain(|known| {
            if !is_meant(known) {
                return true;
            }
            known.user.recall();
            if known.leased_for == LeasedFor::ChangingFile {
                leaving.push(Arc::clone(&known.user));
            }
            false
        });
        self.has_any.store(!listed.is_empty(), Ordering::SeqCst);
    }

    /// Recalls all of them.
    pub fn recall_all(&self) {
        if self.has_any.load(Ordering::SeqCst) {
            self.recall_if(|_| true);
        }
    }

    /// Recalls those who rely on a file that nothing changes.
    pub fn recall_those_of_unchanged_file(&self) {
        if self.has_any.load(Ordering::SeqCst) {
            self.recall_if(|user| user.leased_for == LeasedFor::UnchangedFile);
        }
    }

    /// Recalls those of an owner.
    pub fn recall_those_of(&self, owner: u64) {
        self.recall_if(|user| user.owner == owner);
    }

    /// Whether bytes from an offset on may be changing past the mount.
    #[inline]
    pub fn may_change_from(&self, offset: u64) -> bool {
        offset < self.changing_bytes.load(Ordering::SeqCst)
    }

    /// Whether any bytes may be.
    #[inline]
    pub fn may_change(&self) -> bool {
        self.may_change_from(0)
    }

    /// Recalls those of a changing file, and waits until none of them writes.
    pub fn end_changes(&self, change: PageChange) {
        if !self.may_change() {
            return;
        }
        self.recall_if(|user| {
            user.leased_for == LeasedFor::ChangingFile && (user.is_settled || change != PageChange::WrittenBack)
        });
        self.await_writes();
    }

    /// Waits until no recalled user writes, or has been waited for long enough.
    pub fn await_writes(&self) {
        for look in 0..LOOKS_AT_ONCE + LOOKS_WITH_PAUSE {
            let mut users = self.users.lock();
            users.leaving.retain(|user| user.may_be_writing());
            if users.leaving.is_empty() {
                self.note_changing(&users);
                return;
            }
            drop(users);
            pause_after(look);
        }
        let mut users = self.users.lock();
        users.leaving.drain(..).for_each(|user| user.expire());
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[derive(Debug, Default)]
    struct Recalls {
        recalls: AtomicU32,
        writes: AtomicU32,
        expiries: AtomicU32,
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
        users.add(1, unchanged.clone(), LeasedFor::UnchangedFile, 0);
        users.add(2, changing.clone(), LeasedFor::ChangingFile, 4096);
        users.add(3, settling.clone(), LeasedFor::ChangingFile, 8192);
        let as_user: Arc<dyn OutsideUser> = changing.clone();
        assert!(users.settle(&as_user));
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
        users.add(1, quick.clone(), LeasedFor::ChangingFile, 4096);
        users.recall_all();
        assert!(users.may_change(), "it may be writing although it was recalled");
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
        assert!(!users.may_change());
    }
}
