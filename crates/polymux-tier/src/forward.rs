//! Methods of [`Tier`](crate::Tier) that a wrapper hands on to the tier that it wraps.
//!
//! Invariant: the trait has no default bodies, so a wrapper that neither defines a method nor names it here does not compile. A method with a
//! default body was forgotten in three wrappers before, and their users saw a tier without it.

/// Defines the named methods of [`Tier`](crate::Tier) as calls of those of a field, within an `impl Tier` block. `reads_as_read` stands for
/// `read_for_keeper` and `read_exactly` as the tier's own `read`, and no `memory_reads`: for wrappers that act on reads and, without a field, for tiers that
/// have one way to read.
///
/// ```
/// # use std::sync::Arc;
/// # use polymux_tier::{ObjectRef, Tier, TierError};
/// struct SyncsNothing {
///     inner: Arc<dyn Tier>,
/// }
///
/// impl Tier for SyncsNothing {
///     fn sync(&self, _object: ObjectRef) -> Result<(), TierError> {
///         Ok(())
///     }
///
///     fn sync_all(&self) -> Result<(), TierError> {
///         Ok(())
///     }
///
///     polymux_tier::forward_to_tier!(inner: capabilities, space, create, remove, stat, read, read_for_keeper, read_exactly, memory_reads,
///         write,
///         begin_write_back, wait_for_write_back, read_ahead, cached_bytes, drop_behind, lend, may_be_open_elsewhere, empty_for_removal, share_for_copy, open_for_program,
///         copy_within_file_system, truncate, allocate, punch, seek, allocated, give_back_room_ahead, stamp, read_stamp, is_unsynced, list,
///         read_label, write_label, remove_label, probe, measuring_ground, counters);
/// }
/// ```
#[macro_export]
macro_rules! forward_to_tier {
    ($field:ident: $($method:ident),+ $(,)?) => {
        $($crate::forward_to_tier!(@$method $field);)+
    };
    (@capabilities $field:ident) => {
        fn capabilities(&self) -> &$crate::Capabilities {
            $crate::Tier::capabilities(&*self.$field)
        }
    };
    (@reads_as_read $field:ident) => {
        $crate::forward_to_tier!(reads_as_read);
    };
    (reads_as_read) => {
        $crate::forward_to_tier!(@@read_as read_for_keeper);
        $crate::forward_to_tier!(@@read_as read_exactly);

        fn memory_reads(&self, _object: $crate::ObjectRef) -> Option<::std::sync::Weak<dyn $crate::MemoryReads>> {
            None
        }
    };
    (@memory_reads $field:ident) => {
        $crate::forward_to_tier!(@@call $field memory_reads(object: $crate::ObjectRef) -> Option<::std::sync::Weak<dyn $crate::MemoryReads>>);
    };
    (@@read_as $method:ident) => {
        fn $method(
            &self,
            object: $crate::ObjectRef,
            offset: u64,
            buffer: &mut [u8],
            wait: $crate::Wait,
        ) -> Result<usize, $crate::TierError> {
            self.read(object, offset, buffer, wait)
        }
    };
    (@read $field:ident) => {
        $crate::forward_to_tier!(@@reading $field read);
    };
    (@read_for_keeper $field:ident) => {
        $crate::forward_to_tier!(@@reading $field read_for_keeper);
    };
    (@read_exactly $field:ident) => {
        $crate::forward_to_tier!(@@reading $field read_exactly);
    };
    (@write $field:ident) => {
        $crate::forward_to_tier!(@@call $field write(
            object: $crate::ObjectRef,
            offset: u64,
            data: &[u8],
            wait: $crate::Wait,
        ) -> Result<usize, $crate::TierError>);
    };
    (@space $field:ident) => {
        $crate::forward_to_tier!(@@call $field space() -> Result<$crate::Space, $crate::TierError>);
    };
    (@create $field:ident) => {
        $crate::forward_to_tier!(@@call $field create(object: $crate::ObjectRef) -> Result<(), $crate::TierError>);
    };
    (@remove $field:ident) => {
        $crate::forward_to_tier!(@@call $field remove(object: $crate::ObjectRef) -> Result<(), $crate::TierError>);
    };
    (@stat $field:ident) => {
        $crate::forward_to_tier!(@@call $field stat(object: $crate::ObjectRef) -> Result<$crate::ObjectStat, $crate::TierError>);
    };
    (@begin_write_back $field:ident) => {
        $crate::forward_to_tier!(@@call $field begin_write_back(object: $crate::ObjectRef, offset: u64, length: u64) -> ());
    };
    (@wait_for_write_back $field:ident) => {
        $crate::forward_to_tier!(@@call $field wait_for_write_back(object: $crate::ObjectRef, offset: u64, length: u64) -> ());
    };
    (@read_ahead $field:ident) => {
        $crate::forward_to_tier!(@@call $field read_ahead(object: $crate::ObjectRef, offset: u64, length: u64) -> ());
    };
    (@drop_behind $field:ident) => {
        $crate::forward_to_tier!(@@call $field drop_behind(object: $crate::ObjectRef, offset: u64, length: u64) -> ());
    };
    (@cached_bytes $field:ident) => {
        $crate::forward_to_tier!(@@call $field cached_bytes(object: $crate::ObjectRef, offset: u64, length: u64) -> Option<u64>);
    };
    (@lend $field:ident) => {
        $crate::forward_to_tier!(@@call $field lend(
            object: $crate::ObjectRef,
            purpose: $crate::LoanPurpose,
        ) -> Result<Box<dyn $crate::Loan>, $crate::TierError>);
    };
    (@open_for_program $field:ident) => {
        $crate::forward_to_tier!(@@call $field open_for_program(
            object: $crate::ObjectRef,
            purpose: $crate::LoanPurpose,
        ) -> Result<::std::os::fd::OwnedFd, $crate::TierError>);
    };
    (@empty_for_removal $field:ident) => {
        $crate::forward_to_tier!(@@call $field empty_for_removal(object: $crate::ObjectRef) -> Result<(), $crate::TierError>);
    };
    (@may_be_open_elsewhere $field:ident) => {
        $crate::forward_to_tier!(@@call $field may_be_open_elsewhere(object: $crate::ObjectRef) -> Result<bool, $crate::TierError>);
    };
    (@share_for_copy $field:ident) => {
        $crate::forward_to_tier!(@@call $field share_for_copy(object: $crate::ObjectRef) -> Option<::std::os::fd::OwnedFd>);
    };
    (@copy_within_file_system $field:ident) => {
        $crate::forward_to_tier!(@@call $field copy_within_file_system(
            object: $crate::ObjectRef,
            offset: u64,
            length: u64,
            source: &::std::os::fd::OwnedFd,
        ) -> Result<u64, $crate::TierError>);
    };
    (@truncate $field:ident) => {
        $crate::forward_to_tier!(@@call $field truncate(object: $crate::ObjectRef, size: u64) -> Result<(), $crate::TierError>);
    };
    (@allocate $field:ident) => {
        $crate::forward_to_tier!(@@call $field allocate(
            object: $crate::ObjectRef,
            offset: u64,
            length: u64,
            mode: $crate::AllocateMode,
        ) -> Result<(), $crate::TierError>);
    };
    (@punch $field:ident) => {
        $crate::forward_to_tier!(@@call $field punch(object: $crate::ObjectRef, offset: u64, length: u64) -> Result<(), $crate::TierError>);
    };
    (@seek $field:ident) => {
        $crate::forward_to_tier!(@@call $field seek(
            object: $crate::ObjectRef,
            offset: u64,
            target: $crate::SeekTarget,
        ) -> Result<Option<u64>, $crate::TierError>);
    };
    (@allocated $field:ident) => {
        $crate::forward_to_tier!(@@call $field allocated(
            object: $crate::ObjectRef,
            start: u64,
            end: u64,
        ) -> Result<Option<::std::ops::Range<u64>>, $crate::TierError>);
    };
    (@give_back_room_ahead $field:ident) => {
        $crate::forward_to_tier!(@@call $field give_back_room_ahead() -> Result<(), $crate::TierError>);
    };
    (@stamp $field:ident) => {
        $crate::forward_to_tier!(@@call $field stamp(object: $crate::ObjectRef, stamp: &$crate::ObjectStamp) -> Result<(), $crate::TierError>);
    };
    (@read_stamp $field:ident) => {
        $crate::forward_to_tier!(@@call $field read_stamp(object: $crate::ObjectRef) -> Result<Option<$crate::ObjectStamp>, $crate::TierError>);
    };
    (@sync $field:ident) => {
        $crate::forward_to_tier!(@@call $field sync(object: $crate::ObjectRef) -> Result<(), $crate::TierError>);
    };
    (@sync_all $field:ident) => {
        $crate::forward_to_tier!(@@call $field sync_all() -> Result<(), $crate::TierError>);
    };
    (@is_unsynced $field:ident) => {
        $crate::forward_to_tier!(@@call $field is_unsynced(object: $crate::ObjectRef) -> bool);
    };
    (@list $field:ident) => {
        $crate::forward_to_tier!(@@call $field list(bucket: $crate::Bucket) -> Result<Vec<$crate::ObjectId>, $crate::TierError>);
    };
    (@read_label $field:ident) => {
        $crate::forward_to_tier!(@@call $field read_label() -> Result<$crate::Label, $crate::TierError>);
    };
    (@write_label $field:ident) => {
        $crate::forward_to_tier!(@@call $field write_label(label: &$crate::Label) -> Result<(), $crate::TierError>);
    };
    (@remove_label $field:ident) => {
        $crate::forward_to_tier!(@@call $field remove_label() -> Result<(), $crate::TierError>);
    };
    (@probe $field:ident) => {
        $crate::forward_to_tier!(@@call $field probe() -> Result<(), $crate::TierError>);
    };
    (@measuring_ground $field:ident) => {
        $crate::forward_to_tier!(@@call $field measuring_ground() -> Result<Box<dyn $crate::measure::Ground>, $crate::TierError>);
    };
    (@counters $field:ident) => {
        $crate::forward_to_tier!(@@call $field counters() -> $crate::CounterSnapshot);
    };
    (@@reading $field:ident $method:ident) => {
        $crate::forward_to_tier!(@@call $field $method(
            object: $crate::ObjectRef,
            offset: u64,
            buffer: &mut [u8],
            wait: $crate::Wait,
        ) -> Result<usize, $crate::TierError>);
    };
    (@@call $field:ident $method:ident($($name:ident: $type:ty),* $(,)?) -> $result:ty) => {
        fn $method(&self, $($name: $type),*) -> $result {
            $crate::Tier::$method(&*self.$field, $($name),*)
        }
    };
}
