//! How much of a daemon programs can take.

use std::time::Duration;

use polymux_types::OutsideUse;

/// Leases and requests for them of all programs: each takes a descriptor of the daemon and, with a map and counters in shared memory, up to half a megabyte.
pub const LEASES_MAX: usize = 1024;
/// Of these, those that only root gets.
pub const LEASES_FOR_ROOT: usize = 64;
/// Leases and requests of one user.
pub const LEASES_OF_USER_MAX: usize = 256;
/// Tickets that were not shown yet.
pub const TICKETS_MAX: usize = 512;
/// Of one user.
pub const TICKETS_OF_USER_MAX: usize = 128;
/// How long a ticket may be shown.
pub const TICKET_LIFE: Duration = Duration::from_secs(5);
/// How long a connection may wait before it shows its ticket.
pub const CALLER_LIFE: Duration = Duration::from_secs(2);
/// Connections that are accepted before others are heard.
pub const ACCEPTED_AT_ONCE: usize = 32;
/// Threads that close refused connections.
pub const CLOSERS_MAX: usize = 32;
/// Requests that wait for the giver.
pub const REQUESTS_MAX: usize = 128;
/// Time between two looks at counters and at tickets and callers that are too old, while there are any.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Use by one user that is believed between two looks: about as much as a fast device serves.
pub const USE_BELIEVED: OutsideUse = OutsideUse { random: 1_000_000, stream_bytes: 16 << 30, writes: 1_000_000 };
/// How long a user whose program was waited for in vain gets no lease for a changing file.
pub const LATENESS_REMEMBERED: Duration = Duration::from_secs(60);
/// Users of whom that is remembered; more of them count as late all together.
pub const LATE_USERS_MAX: usize = 1024;
/// Range nodes that are noted as used in one look, of all leases. Others wait for the next look.
pub const NODES_NOTED_MAX: usize = 20_000;
