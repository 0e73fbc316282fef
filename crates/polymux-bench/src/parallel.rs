//! Threads that start at once, and the time until the last of them is done.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use rustix::time::ClockId;

/// Runs `work(index, item)` for each item on a thread of its own; all start together. Returns the time from the start
/// to the end of the last, and their results.
///
/// # Errors
/// The first error of a thread.
pub fn run<I: Send, O: Send>(items: Vec<I>, work: impl Fn(usize, I) -> Result<O> + Sync) -> Result<(Duration, Vec<O>)> {
    let start_line = Barrier::new(items.len());
    let (work, start_line) = (&work, &start_line);
    thread::scope(|scope| {
        let threads: Vec<_> = items
            .into_iter()
            .enumerate()
            .map(|(index, item)| {
                scope.spawn(move || {
                    start_line.wait();
                    // The first thread to run starts the clock: the thread that started them may come to run much later.
                    let start = Instant::now();
                    let outcome = work(index, item);
                    (start, Instant::now(), outcome)
                })
            })
            .collect();
        let mut span: Option<(Instant, Instant)> = None;
        let mut outcomes = Vec::new();
        for thread in threads {
            let (start, end, outcome) = thread.join().map_err(|_| anyhow!("a thread of the measurement panicked"))?;
            span = Some(span.map_or((start, end), |(first, last)| (first.min(start), last.max(end))));
            outcomes.push(outcome?);
        }
        Ok((span.map_or(Duration::ZERO, |(first, last)| last.duration_since(first)), outcomes))
    })
}

/// Processor time that this process has used, background threads included.
#[must_use]
pub fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_that_of_the_slowest_thread() {
        let pauses = vec![Duration::from_millis(1), Duration::from_millis(60)];
        let (time, done) = run(pauses, |index, pause| {
            thread::sleep(pause);
            Ok(index)
        })
        .unwrap();
        assert!(time >= Duration::from_millis(59), "{time:?}");
        assert_eq!(done, [0, 1]);
    }

    #[test]
    fn an_error_of_one_thread_is_the_outcome() {
        let outcome = run(vec![1, 2], |_, item| if item == 2 { Err(anyhow!("two")) } else { Ok(()) });
        assert_eq!(outcome.unwrap_err().to_string(), "two");
    }
}
