//! Profiles the backend of one client with perf.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use idem_cluster::{Cluster, Install};

use super::load::{Load, Until, Work};
use super::options::Options;
use super::side::Side;
use super::{server, throughput};

/// The number of lines in one report.
const LINES: usize = 45;

/// Profiles a claim with its business update on both sides, a claim with an effect, and a claim
/// alone.
pub fn run(install: &Install, options: &Options) -> Result<()> {
    let cluster = server::start(install, "bench-profile", &[])?;
    for side in Side::in_turn(0) {
        throughput::prepare(&cluster, side, options.retained())?;
    }
    for (side, work) in [
        (Side::Idem, Work::Business),
        (Side::HandWritten, Work::Business),
        (Side::Idem, Work::Effect),
        (Side::Idem, Work::ClaimAlone),
    ] {
        println!("\n{side:?}, {work:?}");
        println!("{}", profile(&cluster, side, work, options.round())?);
    }
    Ok(())
}

fn profile(cluster: &Cluster, side: Side, work: Work, time: Duration) -> Result<String> {
    let data = cluster.socket_dir().join("perf.data");
    let load = Load {
        cluster,
        side,
        work,
        clients: 1,
        duplicates: 0,
        synchronous_commit: false,
        known: &[],
        until: Until::Time(time + Duration::from_secs(1)),
        record: None,
    };
    let (done, _) = load.run_with(|progress| {
        let pid = progress.pids().first().context("no client")?.to_string();
        let seconds = time.as_secs().max(1).to_string();
        let status = Command::new("perf")
            .args(["record", "-q", "-g", "-F", "1999", "-p", &pid, "-o"])
            .arg(&data)
            .args(["--", "sleep", &seconds])
            .stdout(Stdio::null())
            .status()
            .context("cannot run perf: install linux-perf")?;
        ensure!(status.success(), "perf record failed ({status})");
        Ok(())
    })?;
    let report = Command::new("perf")
        .arg("report")
        .arg("-i")
        .arg(&data)
        .args([
            "--stdio",
            "--no-children",
            "-g",
            "none",
            "--percent-limit",
            "0.6",
            "--sort",
            "dso,symbol",
        ])
        .stderr(Stdio::null())
        .output()?;
    ensure!(
        report.status.success(),
        "perf report failed ({})",
        report.status
    );
    let text = String::from_utf8_lossy(&report.stdout);
    let lines: Vec<_> = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
        .take(LINES)
        .collect();
    Ok(format!(
        "{:.0} transactions per second under perf\n{}",
        done.rate(),
        lines.join("\n")
    ))
}
