//! Measures `process()` against the same business transaction without protection, and with a
//! hand-written inbox, as the demo does: with and without an outgoing message.

use anyhow::Result;
use idem_cluster::Install;

use super::options::Options;
use super::protection::{self, Config, Contestant};
use super::report::{Rounds, Table, Target};
use super::server;
use super::side::Side;
use super::wire::Session;

/// The number of clients. A client is a task that is never idle.
const CLIENTS: usize = 8;

/// Returns the name of the line with this baseline.
pub fn line_name(synchronous_commit: &str, outgoing: bool, baseline: Contestant) -> String {
    let baseline = match (baseline, outgoing) {
        (Contestant::ByHand, false) => "a hand-written inbox",
        (Contestant::ByHand, true) => "a hand-written inbox and outbox",
        _ => "no protection",
    };
    let message = if outgoing { "one effect, " } else { "" };
    format!("synchronous_commit {synchronous_commit}: {message}against {baseline}")
}

pub fn run(install: &Install, options: &Options) -> Result<Vec<Table>> {
    let mut table = Table::new(
        "process: process(), claim, one business update, commit; 8 clients",
        ["idem, messages/s", "baseline, messages/s"],
    );
    let config = Config {
        rounds: options.rounds(),
        round_ms: u64::try_from(options.round().as_millis())?,
        clients: CLIENTS,
        retained: u32::try_from(options.retained())?,
        ..Config::default()
    };
    table.note(format!(
        "statements with parameters are prepared; every message is new; {} retained claims in both \
         inboxes; pools of {} connections, of which idem keeps one for short statements; no \
         protection: BEGIN, UPDATE, COMMIT, three round trips; hand-written: BEGIN, INSERT ... ON \
         CONFLICT DO NOTHING with a text key and an index on the time, UPDATE, with one effect \
         INSERT INTO outbox, COMMIT, four or five round trips; idem: three",
        config.retained,
        protection::connections(CLIENTS)
    ));
    let mut settings = String::new();
    for commit in ["on", "off"] {
        for outgoing in [false, true] {
            // A new server for each, because a measurement leaves claims behind.
            let cluster = server::start(install, "bench-process", &[])?;
            let database = cluster.connection_string(Side::Idem.database());
            let url = format!("{database} options='-c synchronous_commit={commit}'");
            let config = Config {
                outgoing,
                ..config.clone()
            };
            let report =
                tokio::runtime::Runtime::new()?.block_on(protection::run(&url, &config, |_| {}))?;
            let least = match (outgoing, commit) {
                (true, _) => [Target::None, Target::AtLeast(1.25)],
                (false, "on") => [Target::AtLeast(0.75), Target::AtLeast(1.15)],
                (false, _) => [Target::AtLeast(0.72), Target::AtLeast(1.15)],
            };
            for (baseline, target) in [Contestant::BusinessAlone, Contestant::ByHand]
                .into_iter()
                .zip(least)
            {
                let rounds = Rounds {
                    ours: report.rates.of(Contestant::Idem).to_vec(),
                    theirs: report.rates.of(baseline).to_vec(),
                };
                table.rounds(&line_name(commit, outgoing, baseline), &rounds, target);
            }
            settings = server::settings(&mut Session::connect(&cluster, Side::Idem.database())?)?;
        }
    }
    table.note(settings);
    Ok(vec![table])
}
