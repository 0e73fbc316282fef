//! The order of requests against a model of a device that serves one after the other.

use std::collections::VecDeque;

use polymux_records::report::deferral_wait_ends_ms;
use polymux_types::{Clock, ManualClock};

use super::super::bandwidth::Began;
use super::*;

const MS: Duration = Duration::from_millis(1);
const STEP: Duration = Duration::from_micros(100);
const CLASSES: [Deferrable; 2] = [Deferrable::Move, Deferrable::WriteBehind];

/// The work of the device.
enum Job {
    Read(Began, Duration),
    Deferrable(usize),
}

/// Always has a request that could go, and sends the next one when the last one is served.
struct Requester {
    class: Deferrable,
    ready: Ready,
    /// Since when it could go, as the model knows it; `None` while one is under way.
    since: Option<Duration>,
    ask_at: Duration,
    served: u32,
    longest: Duration,
}

struct Model {
    clock: ManualClock,
    deferral: Deferral,
    reads: Lane,
    queue: VecDeque<(Job, Duration)>,
    /// When the first of the queue is served.
    served_at: Option<Duration>,
    requesters: Vec<Requester>,
    /// When the reader reads again; `None` while it waits, or reads nothing.
    read_at: Option<Duration>,
    read_latencies: Vec<Duration>,
}

impl Model {
    fn new(classes: &[Deferrable]) -> Self {
        let clock = ManualClock::new(Duration::from_secs(1_000_000_000));
        let requester = |class: &Deferrable| Requester {
            class: *class,
            ready: Ready::default(),
            since: Some(clock.elapsed()),
            ask_at: Duration::ZERO,
            served: 0,
            longest: Duration::ZERO,
        };
        Self {
            requesters: classes.iter().map(requester).collect(),
            clock,
            deferral: Deferral::default(),
            reads: Lane::default(),
            queue: VecDeque::new(),
            served_at: None,
            read_at: None,
            read_latencies: Vec::new(),
        }
    }

    /// Lets time pass, with a reader that thinks for a while between two reads of 2 ms; requests of the others take 8 ms.
    fn run(&mut self, duration: Duration, thinks: Option<Duration>) {
        let end = self.clock.elapsed() + duration;
        self.read_at = thinks.map(|_| self.clock.elapsed());
        while self.clock.elapsed() < end {
            self.serve(thinks);
            let now = self.clock.elapsed();
            if self.read_at.is_some_and(|at| at <= now) {
                self.read_at = None;
                self.queue.push_back((Job::Read(self.reads.began(0, now), now), 2 * MS));
            }
            self.ask();
            self.clock.advance(STEP);
        }
    }

    fn serve(&mut self, thinks: Option<Duration>) {
        let now = self.clock.elapsed();
        if self.served_at.is_some_and(|at| at <= now) {
            self.served_at = None;
            match self.queue.pop_front() {
                Some((Job::Read(began, since), _)) => {
                    self.reads.ended(began, 4096, now);
                    self.read_latencies.push(now - since);
                    self.read_at = thinks.map(|thinks| now + thinks);
                }
                Some((Job::Deferrable(index), _)) => {
                    self.requesters[index].served += 1;
                    self.requesters[index].since = Some(now);
                }
                None => {}
            }
        }
        if self.served_at.is_none()
            && let Some((_, service)) = self.queue.front()
        {
            self.served_at = Some(now + *service);
        }
    }

    fn ask(&mut self) {
        let now = self.clock.elapsed();
        for (index, requester) in self.requesters.iter_mut().enumerate() {
            let Some(since) = requester.since else { continue };
            requester.longest = requester.longest.max(now - since);
            if requester.ask_at > now {
                continue;
            }
            let urgency = self.deferral.urgency(&self.reads, now);
            let wait = self.deferral.ask(requester.class, &mut requester.ready, urgency, now);
            requester.ask_at = now + wait;
            if wait.is_zero() {
                requester.since = None;
                self.queue.push_back((Job::Deferrable(index), 8 * MS));
            }
        }
    }

    fn mean_latency(&self) -> Duration {
        self.read_latencies.iter().sum::<Duration>() / u32::try_from(self.read_latencies.len()).expect("few")
    }
}

#[test]
fn nothing_deferrable_waits_longer_than_the_bound_and_each_class_goes_on() {
    for bound in [5 * MS, BOUND_DEFAULT, 200 * MS] {
        let mut model = Model::new(&CLASSES);
        model.deferral.set_bound(bound);
        model.run(Duration::from_secs(20), Some(Duration::ZERO));
        for requester in &model.requesters {
            assert!(requester.longest <= bound, "{:?}: {:?} of {bound:?}", requester.class, requester.longest);
            let at_least = 20_000 / (bound.as_millis() + 30);
            assert!(u128::from(requester.served) >= at_least, "{} served, not {at_least}", requester.served);
            let waits = model.deferral.waits(requester.class);
            assert!(waits.at_bound >= waits.requests - 1, "{waits:?}: all but the first, which nothing was before");
            assert!(Duration::from_micros(waits.longest_us) <= bound, "{waits:?}");
        }
    }
}

#[test]
fn a_fault_that_lets_the_deferrable_starve_is_noticed() {
    PlantedFault::plant(Some(PlantedFault::DeferrableStarves));
    let mut model = Model::new(&CLASSES);
    model.run(Duration::from_secs(2), Some(Duration::ZERO));
    PlantedFault::plant(None);
    assert!(model.requesters.iter().all(|requester| requester.longest > BOUND_DEFAULT + STEP));
}

#[test]
fn readers_go_first() {
    let mut latencies = Vec::new();
    for bound in [Duration::ZERO, BOUND_DEFAULT] {
        let mut model = Model::new(&CLASSES);
        model.deferral.set_bound(bound);
        model.run(Duration::from_secs(20), Some(Duration::ZERO));
        latencies.push(model.mean_latency());
    }
    // Alone a read takes 2 ms, beside both without an order 18 ms.
    assert!(latencies[0] > 15 * MS && latencies[1] < 5 * MS, "{latencies:?}");
}

#[test]
fn where_a_reader_leaves_gaps_the_others_use_them_and_wait_for_no_bound() {
    let mut model = Model::new(&[Deferrable::WriteBehind]);
    model.run(Duration::from_secs(20), Some(20 * MS));
    let waits = model.deferral.waits(Deferrable::WriteBehind);
    assert!(waits.at_bound == 0 && waits.requests > 800, "{waits:?}");
    assert!(model.mean_latency() < 6 * MS, "{:?}", model.mean_latency());
}

#[test]
fn with_nothing_urgent_nothing_waits() {
    let mut model = Model::new(&CLASSES);
    model.run(Duration::from_secs(5), None);
    for class in CLASSES {
        let waits = model.deferral.waits(class);
        assert_eq!((waits.by_wait[0], waits.longest_us), (waits.requests, 0));
        assert!(waits.requests > 250, "{waits:?}");
    }
}

#[test]
fn of_many_requests_that_are_ready_together_one_goes_at_a_time() {
    let deferral = Deferral::default();
    let mut readies = [Ready::default(); 4];
    let mut went = Vec::new();
    for millisecond in 0..200 {
        let now = Duration::from_secs(1) + millisecond * MS;
        for ready in &mut readies {
            if deferral.ask(Deferrable::Move, ready, Urgency::Urgent, now).is_zero() {
                went.push(millisecond);
            }
        }
    }
    assert_eq!(went, [30, 60, 90, 120, 150, 180]);
}

#[test]
fn a_sync_is_urgent_from_its_beginning_until_a_moment_after_its_end() {
    let (deferral, reads, now) = (Deferral::default(), Lane::default(), Duration::from_secs(1));
    assert_eq!(deferral.urgency(&reads, now), Urgency::Quiet);
    deferral.sync_began();
    assert_eq!(deferral.urgency(&reads, now + 900 * MS), Urgency::Urgent);
    deferral.sync_ended(now + 900 * MS);
    assert_eq!(deferral.urgency(&reads, now + 900 * MS + LINGER - STEP), Urgency::Urgent);
    assert_eq!(deferral.urgency(&reads, now + 900 * MS + LINGER), Urgency::Quiet);
}

#[test]
fn waits_are_counted_in_the_class_whose_end_they_do_not_exceed() {
    let ends = deferral_wait_ends_ms();
    for microseconds in [0, 1, 999, 1000, 1001, 2000, 2001, 30_000, 1_024_000, 1_024_001, 60_000_000] {
        let class = class_of(Duration::from_micros(microseconds));
        assert!(ends[class].is_none_or(|end| microseconds <= end * 1000), "{microseconds} in {class}");
        assert!(class == 0 || ends[class - 1].is_some_and(|end| microseconds > end * 1000), "{microseconds}");
    }
}
