//! The daemon's end of the control socket: one request line, one answer line; a long request reports its progress before it.
//!
//! Invariants:
//! * The socket is made in a directory that only its user may enter, and is itself 0600: every peer is that user
//!   or root.
//! * Each connection has its own thread, so that a request that waits for a tier holds up no other request.
//! * A check or a measurement ends when no client waits for its answer any more.

use std::io::{BufRead, BufReader, Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use polymux_fs::MoversState;
use polymux_types::Ino;

use crate::protocol::{Answer, MovesReport, REQUEST_LENGTH_MAX, Request, TierChange};
use crate::report::DaemonView;
use crate::tier_candidates::VolatileTiers;
use crate::tier_events;
use crate::tier_forget;
use crate::tier_measure;

/// How long a client may take to send its request or to take its answer.
const CLIENT_PATIENCE: Duration = Duration::from_secs(10);

/// Time between two lines that say how far something is.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// Time between two lines that say that something is still under way.
const SIGN_OF_LIFE_INTERVAL: Duration = Duration::from_secs(5);

/// Lost files reported in one line.
const LOST_FILES_PER_LINE: usize = 256;

/// A socket that is served until the process ends; its name goes when this is dropped.
pub struct ControlServer {
    path: PathBuf,
}

impl ControlServer {
    /// Serves requests about one volume. A socket that is there already is a crashed daemon's, because the caller
    /// holds the lock of the volume.
    pub fn start(path: &Path, view: Arc<DaemonView>) -> Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot replace {}", path.display()));
            }
            _ => {}
        }
        let listener = UnixListener::bind(path).with_context(|| format!("cannot make {}", path.display()))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        thread::Builder::new().name("control".to_owned()).spawn(move || accept(&listener, &view))?;
        Ok(Self { path: path.to_owned() })
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn accept(listener: &UnixListener, view: &Arc<DaemonView>) {
    for stream in listener.incoming() {
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                log::warn!("control socket: {error}");
                // Out of descriptors, most likely: trying again at once would only spin.
                thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        let view = Arc::clone(view);
        let spawned = thread::Builder::new().name("control-client".to_owned()).spawn(move || {
            if let Err(error) = serve(&stream, &view) {
                log::debug!("control client: {error:#}");
            }
        });
        if let Err(error) = spawned {
            log::warn!("control client: {error}");
        }
    }
}

fn serve(stream: &UnixStream, view: &DaemonView) -> Result<()> {
    stream.set_read_timeout(Some(CLIENT_PATIENCE))?;
    stream.set_write_timeout(Some(CLIENT_PATIENCE))?;
    let mut line = String::new();
    BufReader::new(stream.take(REQUEST_LENGTH_MAX)).read_line(&mut line)?;
    let answer = match serde_json::from_str::<Request>(&line) {
        Ok(request) => {
            // Programs that watch a volume ask again and again, and let it rest.
            let only_looks =
                matches!(request, Request::Status | Request::Clients | Request::Moves | Request::Jobs { .. });
            let note_use = || !only_looks && view.file_system.note_use();
            note_use();
            let answer = answer_to(&request, stream, view);
            note_use();
            answer
        }
        Err(error) => Answer::Error(format!("the daemon does not understand the request: {error}")),
    };
    send(stream, &answer)
}

fn send(mut stream: &UnixStream, answer: &Answer) -> Result<()> {
    let mut text = serde_json::to_string(answer)?;
    text.push('\n');
    stream.write_all(text.as_bytes())?;
    Ok(())
}

fn check(stream: &UnixStream, view: &DaemonView) -> Answer {
    let mut due = Instant::now() + PROGRESS_INTERVAL;
    let checked = view.check(&mut |progress| {
        if Instant::now() < due {
            return ControlFlow::Continue(());
        }
        due = Instant::now() + PROGRESS_INTERVAL;
        match send(stream, &Answer::CheckProgress(progress.into())) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    });
    checked.map_or_else(|error| Answer::Error(error.to_string()), |report| Answer::Fsck(Box::new(report)))
}

fn measure(stream: &UnixStream, view: &DaemonView, tier: &str, millis: u64) -> Answer {
    let mut due = Instant::now();
    let measured = tier_measure::measure(&view.file_system, tier, Duration::from_millis(millis), &mut |progress| {
        if Instant::now() < due {
            return ControlFlow::Continue(());
        }
        due = Instant::now() + PROGRESS_INTERVAL;
        match send(stream, &Answer::MeasureProgress(progress.clone())) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    });
    measured.map_or_else(refused, |report| Answer::TierMeasured(Box::new(report)))
}

fn losses(stream: &UnixStream, view: &DaemonView, tier: &str) -> Answer {
    let mut part = Vec::new();
    let told = view.file_system.files_lost_with(tier, &mut |lost| {
        part.push(tier_forget::report_of(&lost));
        if part.len() < LOST_FILES_PER_LINE {
            return ControlFlow::Continue(());
        }
        match send(stream, &Answer::TierLossPart(std::mem::take(&mut part))) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    });
    let last = told.map_err(anyhow::Error::from).and_then(|()| send(stream, &Answer::TierLossPart(part)));
    last.map_or_else(refused, |()| Answer::Done)
}

/// Runs to completion whether a client waits for it or not.
fn forget(stream: &UnixStream, view: &DaemonView, tier: &str) -> Answer {
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            // The receiver is there until the end of the scope.
            let _ = sender.send(tier_events::forget(view, tier));
        });
        loop {
            match receiver.recv_timeout(SIGN_OF_LIFE_INTERVAL) {
                Ok(changed) => return tier_changed(changed),
                Err(mpsc::RecvTimeoutError::Timeout) => drop(send(stream, &Answer::TierLossPart(Vec::new()))),
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Answer::Error("the daemon stopped forgetting the tier: its log says why".to_owned());
                }
            }
        }
    })
}

fn answer_to(request: &Request, stream: &UnixStream, view: &DaemonView) -> Answer {
    let answered = match request {
        Request::Status => view.status().map(|report| Answer::Status(Box::new(report))),
        Request::Where { ino } => view.locate(Ino(*ino)).map(Answer::Where),
        Request::WhereTier { tier, listed_max } => view.files_of_tier(tier, *listed_max).map(Answer::WhereTier),
        Request::Migrate { files, tier, range } => {
            return view.migrate(files, tier, *range).map_or_else(refused, Answer::Migrate);
        }
        Request::Jobs { jobs } => return Answer::Jobs(view.jobs(jobs)),
        Request::Moves => return moves(Ok(view.moves())),
        Request::TierDrain { tier } => return moves(view.drain(tier)),
        Request::TierDrainCancel { tier } => return moves(view.cancel_drain(tier)),
        Request::Pause => return moves(Ok(view.set_movers(MoversState::Paused))),
        Request::Resume => return moves(Ok(view.set_movers(MoversState::Working))),
        Request::Clients => return Answer::Clients(view.clients()),
        Request::Policies => return view.policies().map_or_else(refused, Answer::Policies),
        Request::PolicyAdvise => return view.advise().map_or_else(refused, Answer::Advice),
        Request::PolicySet { change } => return view.set_policy(change).map_or_else(refused, Answer::Policies),
        Request::Pin { files, tier } => return view.pin(files, tier.as_deref()).map_or_else(refused, Answer::Pinned),
        Request::Pins => return view.pins().map_or_else(refused, Answer::Pins),
        Request::Explain { ino } => {
            return view.explain(Ino(*ino)).map_or_else(refused, |report| Answer::Explain(Box::new(report)));
        }
        Request::Plan { policy } => {
            return view.plan(policy.as_deref()).map_or_else(refused, |report| Answer::Plan(Box::new(report)));
        }
        Request::Fsck => return check(stream, view),
        Request::TierAdd { tier, place, volatile_for_tests } => {
            let volatile = if *volatile_for_tests { VolatileTiers::Allowed } else { VolatileTiers::Refused };
            return tier_changed(tier_events::add(view, tier, place, volatile));
        }
        Request::ForgetPages { ino } => view.file_system.forget_pages(Ino(*ino)).map(|()| Answer::Done),
        Request::TierMeasure { tier, millis } => return measure(stream, view, tier, *millis),
        Request::TierLosses { tier } => return losses(stream, view, tier),
        Request::TierForget { tier } => return forget(stream, view, tier),
        Request::AcceptLoss { ino } => view.file_system.accept_lost_bytes(Ino(*ino)).map(Answer::LossAccepted),
        Request::TierRemove { tier } => return tier_changed(tier_events::remove(view, tier)),
    };
    answered.unwrap_or_else(|error| Answer::Error(error.to_string()))
}

fn moves(answered: Result<MovesReport>) -> Answer {
    answered.map_or_else(refused, |report| Answer::Moves(Box::new(report)))
}

fn refused(error: anyhow::Error) -> Answer {
    Answer::Error(format!("{error:#}"))
}

fn tier_changed(changed: Result<TierChange>) -> Answer {
    changed.map_or_else(|error| Answer::Error(format!("{error:#}")), Answer::TierChanged)
}
