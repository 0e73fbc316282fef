//! `polymux status --clients`: which programs use files past the mount (docs/design/0046).

use anyhow::{Result, bail};
use polymux_config::registry::Registry;
use polymux_types::ByteSize;

use crate::cli::OutputFormat;
use crate::client;
use crate::output::{self, Table};
use crate::protocol::{Answer, ClientReport, LeasesReport, Request};
use crate::report::DaemonView;

impl DaemonView {
    /// The leases of the volume, as numbers; `None` where they are off.
    pub fn leases(&self) -> Option<LeasesReport> {
        let leases = self.door.as_ref()?.leases();
        let recalled = leases.iter().filter(|lease| lease.is_recalled).count();
        Some(LeasesReport { live: leases.len() - recalled, recalled })
    }

    /// Each of them.
    pub fn clients(&self) -> Vec<ClientReport> {
        let leases = self.door.as_ref().map(|door| door.leases()).unwrap_or_default();
        let path = |ino| self.file_system.path_of(ino).ok().flatten();
        let report = |lease: polymux_door::LeaseReport| ClientReport {
            pid: lease.pid,
            uid: lease.uid,
            ino: lease.ino.get(),
            path: path(lease.ino).map(|path| String::from_utf8_lossy(&path).into_owned()),
            recalled: lease.is_recalled,
            seconds: lease.age.as_secs(),
            covered_bytes: lease.covered_bytes,
            device_reads: lease.device_reads,
            writes: lease.writes,
        };
        leases.into_iter().map(report).collect()
    }
}

/// Leases as a line of `polymux status`.
pub fn summary(leases: Option<&LeasesReport>) -> String {
    match leases {
        None => "  leases: off".to_owned(),
        Some(LeasesReport { live, recalled: 0 }) => format!("  leases: {live}"),
        Some(LeasesReport { live, recalled }) => {
            format!("  leases: {live}, and {recalled} that ended and whose programs still have objects open")
        }
    }
}

/// Lists the programs of a volume that have leases.
pub fn run(registry: &Registry, volume: &str, format: OutputFormat) -> Result<()> {
    let name = client::volume_name(registry, volume)?;
    let clients = match client::ask(registry, &name, &Request::Clients)? {
        Some(Answer::Clients(clients)) => clients,
        Some(Answer::Error(error)) => bail!("{error}"),
        Some(_) => bail!("the daemon of volume `{name}` answered something else"),
        None => bail!("volume `{name}` is not mounted"),
    };
    if format == OutputFormat::Json {
        return output::json(&clients);
    }
    if clients.is_empty() {
        return output::line("no program uses files past the mount");
    }
    let mut table = Table::new(&["PROCESS", "USER", "STATE", "SECONDS", "COVERED", "DEVICE READS", "WRITES", "FILE"]);
    for client in &clients {
        table.row(vec![
            client.pid.to_string(),
            client.uid.to_string(),
            if client.recalled { "ended" } else { "live" }.to_owned(),
            client.seconds.to_string(),
            ByteSize(client.covered_bytes).to_string(),
            client.device_reads.to_string(),
            client.writes.to_string(),
            client.path.as_ref().map_or_else(|| format!("inode {}", client.ino), |path| output::name(path)),
        ]);
    }
    output::line(&table.render(""))
}
