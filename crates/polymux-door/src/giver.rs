//! Opens objects for programs, which may wait for their tiers.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Weak};

use polymux_fs::FileSystem;
use polymux_lease::message::{self, ToGrant};
use polymux_lease::{Changes, LeasedMap, LifeKeeper, RUNS_MAX, UseCounts};
use polymux_types::LeaseRefusal;

use crate::Shared;
use crate::connection::Connection;
use crate::lease::{Lease, Mounts, Recall, Shared as Memory};
use crate::tickets::Issued;

/// A connection that has shown a ticket.
pub struct Request {
    pub number: u64,
    pub connection: Connection,
    pub issued: Issued,
}

pub struct Giver {
    pub file_system: Weak<FileSystem>,
    pub shared: Arc<Shared>,
}

/// A lease with the descriptors that only its program keeps.
struct Given {
    lease: Lease,
    map: OwnedFd,
    counts: OwnedFd,
    objects: Vec<OwnedFd>,
}

impl Giver {
    /// Serves until there is no keeper to ask it.
    pub fn run(&self, requests: &Receiver<Request>) {
        while let Ok(request) = requests.recv() {
            let Some(file_system) = self.file_system.upgrade() else { return };
            self.serve(&file_system, request);
        }
    }

    fn serve(&self, file_system: &FileSystem, request: Request) {
        let proof = request.issued.proof;
        match self.lease(file_system, &request) {
            Ok(Given { lease, map, counts, objects }) => {
                let life = self.shared.life.lock();
                let Some(life) = life.as_ref().map(LifeKeeper::descriptor) else { return };
                let granted = ToGrant { life, map: map.as_fd(), counts: counts.as_fd(), objects: &objects };
                // A program that is gone, or has no space for an answer, gets no lease.
                if message::answer(&request.connection, &proof, Ok(granted)).is_ok() {
                    self.keep(request, lease);
                }
            }
            Err(refusal) => drop(message::answer(&request.connection, &proof, Err(refusal.code()))),
        }
    }

    fn keep(&self, request: Request, lease: Lease) {
        let number = request.number;
        self.shared.leases.add(number, Arc::new(lease), request.connection);
        if let Err(error) = self.shared.leases.watch(number, |connection| self.shared.watch_end(connection, number)) {
            // Its end would not be seen.
            log::warn!("a lease is recalled: {error}");
            drop(self.shared.leases.take(number));
        }
        self.shared.wake();
    }

    fn lease(&self, file_system: &FileSystem, request: &Request) -> Result<Given, LeaseRefusal> {
        if self.shared.is_over() {
            return Err(LeaseRefusal::Off);
        }
        let peer = request.connection.peer;
        let mounts = Mounts::of(&request.connection, peer);
        let recall = Arc::new(Recall::new(peer.uid, mounts, Arc::clone(&self.shared.late_users)));
        // An error is in the log.
        let mut leased = file_system
            .lease_file(request.issued.handle, RUNS_MAX, request.issued.wish, Arc::clone(&recall) as _)
            .map_err(|_| LeaseRefusal::Failed)??;
        let changes = if leased.may_change() { Changes::Possible } else { Changes::None };
        let made = LeasedMap::create(leased.ino().get(), &leased.runs, changes)
            .and_then(|map| Ok((map, UseCounts::create(leased.length())?)))
            .inspect_err(|error| log::warn!("no memory for a lease: {error}"));
        let ((map, for_map), (counts, for_counts)) = made.map_err(|_| LeaseRefusal::Failed)?;
        recall.set_shared(Memory { map, counts });
        // The program has the map, and will have the objects.
        leased.runs = Vec::new();
        let objects = std::mem::take(&mut leased.objects);
        let lease = Lease::new(peer, leased, recall);
        Ok(Given { lease, map: for_map, counts: for_counts, objects })
    }
}
