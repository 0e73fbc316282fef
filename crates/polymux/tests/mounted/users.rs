//! Other users, for tests that root runs.

use rustix::process::{Gid, Uid};

/// Does something on a thread of that user, in the group of the same number, with none of the privileges of root (unless it is root).
pub fn as_user<T: Send>(user: u32, body: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let acting = scope.spawn(|| {
            let (user, group) = (Uid::from_raw(user), Gid::from_raw(user));
            rustix::thread::set_thread_groups(&[]).expect("root may");
            rustix::thread::set_thread_res_gid(group, group, group).expect("root may");
            rustix::thread::set_thread_res_uid(user, user, user).expect("root may");
            body()
        });
        acting.join().expect("the other user gets through")
    })
}
