//! The progress of the two parts: a table that is redrawn on a terminal, and lines otherwise.

use std::sync::{Arc, atomic::Ordering::Relaxed};
use std::time::Duration;

use anyhow::Result;
use tokio::task::JoinHandle;

use super::table::Table;
use crate::range::{System, Watch};
use idem_bench::protection::{Contestant, Progress, Rates};

/// The time between two updates of the table.
const REDRAW: Duration = Duration::from_millis(100);

/// The time between two lines, without a terminal.
const NEXT_LINE: Duration = Duration::from_secs(2);

/// What happens before the rounds of the second part.
const FILLING: &str = "filling both inboxes";

/// The progress of the first part.
pub struct ErrorsView {
    table: Arc<Table>,
}

impl ErrorsView {
    /// Creates the view and shows that all systems wait.
    pub fn new() -> Result<Self> {
        let headings = columns("deliveries", "repeated", "killed", "hit+miss");
        let table = Table::new(&headings, &System::ALL.map(System::name))?;
        for row in 0..System::ALL.len() {
            table.set_row(row, 0.0, "waits".to_owned());
        }
        table.set_title("the same messages for every kind of handler".to_owned());
        Ok(Self {
            table: Arc::new(table),
        })
    }

    /// Shows the progress of a trial until the returned value is dropped.
    pub fn follow(&self, watch: Watch) -> Following {
        let table = Arc::clone(&self.table);
        let ticker = tokio::spawn({
            let (table, watch) = (Arc::clone(&table), watch.clone());
            async move {
                let mut tick =
                    tokio::time::interval(if table.is_drawn() { REDRAW } else { NEXT_LINE });
                tick.tick().await;
                loop {
                    tick.tick().await;
                    show(&table, &watch);
                }
            }
        });
        Following {
            table,
            watch,
            ticker,
        }
    }

    /// Removes the view from the terminal.
    pub fn close(&self) {
        self.table.close();
    }
}

/// Shows the progress of one trial, and its last state when it is dropped.
pub struct Following {
    table: Arc<Table>,
    watch: Watch,
    ticker: JoinHandle<()>,
}

impl Drop for Following {
    fn drop(&mut self) {
        self.ticker.abort();
        show(&self.table, &self.watch);
    }
}

fn show(table: &Table, watch: &Watch) {
    let Watch { state, attempts } = watch;
    let (counts, kills) = (state.transport.counts(), state.kills.load(Relaxed));
    let contradictions = state.observer.contradictions();
    if table.is_drawn() {
        let share = state.observer.attempts() as f64 / (*attempts).max(1) as f64;
        let row = System::ALL.iter().position(|s| *s == state.system);
        let text = columns(counts.deliveries, counts.duplicates, kills, contradictions);
        table.set_row(row.unwrap_or_default(), share, text);
    } else {
        eprintln!(
            "errors, {:<11} {:>7} deliveries, {:>6} repeated, {kills:>5} killed, \
             {contradictions:>6} hit and miss",
            state.system.name(),
            counts.deliveries,
            counts.duplicates,
        );
    }
}

fn columns(
    deliveries: impl ToString,
    repeated: impl ToString,
    killed: impl ToString,
    contradictions: impl ToString,
) -> String {
    format!(
        "{:>10} {:>9} {:>7} {:>9}",
        deliveries.to_string(),
        repeated.to_string(),
        killed.to_string(),
        contradictions.to_string()
    )
}

/// The progress of the second part. It changes only between two measurements, so it does not
/// disturb them.
pub struct CostView {
    table: Table,
    rounds: usize,
    /// The number of rounds that were printed as lines.
    printed: usize,
}

impl CostView {
    /// Creates the view of a measurement with this number of rounds.
    pub fn new(rounds: usize) -> Result<Self> {
        let headings = format!("{:>10} {:>16}", "messages/s", "against alone");
        let table = Table::new(&headings, &Contestant::ALL.map(Contestant::name))?;
        table.set_title(FILLING.to_owned());
        if !table.is_drawn() {
            eprintln!("cost, {FILLING}");
        }
        Ok(Self {
            table,
            rounds,
            printed: 0,
        })
    }

    /// Shows the progress.
    pub fn show(&mut self, progress: &Progress<'_>) {
        if self.table.is_drawn() {
            self.draw(progress);
        } else {
            self.print(progress.rates);
        }
    }

    /// Removes the view from the terminal.
    pub fn close(&self) {
        self.table.close();
    }

    fn draw(&self, progress: &Progress<'_>) {
        let rates = progress.rates;
        let best = Contestant::ALL
            .map(|contestant| rates.median(contestant))
            .into_iter()
            .fold(0.0, f64::max);
        for (row, contestant) in Contestant::ALL.into_iter().enumerate() {
            let share = rates.median(contestant) / best;
            self.table.set_row(row, share, figures(rates, contestant));
        }
        self.table.set_title(title(progress));
    }

    /// Prints the rounds that have ended since the last call.
    fn print(&mut self, rates: &Rates) {
        let complete = Contestant::ALL
            .map(|contestant| rates.of(contestant).len())
            .into_iter()
            .min();
        for round in self.printed..complete.unwrap_or_default() {
            eprintln!("{}", round_line(rates, round, self.rounds));
            self.printed = round + 1;
        }
    }
}

fn title(progress: &Progress<'_>) -> String {
    match progress.round {
        0 => format!("warm-up: {}", progress.next),
        round => format!("round {round} of {}: {}", progress.rounds, progress.next),
    }
}

/// Returns the figures that a contestant has reached until now, as the text of a row.
fn figures(rates: &Rates, contestant: Contestant) -> String {
    if rates.of(contestant).is_empty() {
        return "waits".to_owned();
    }
    let against = match contestant {
        Contestant::BusinessAlone => "baseline".to_owned(),
        _ if rates.of(Contestant::BusinessAlone).is_empty() => String::new(),
        _ => rates
            .ratio(contestant, Contestant::BusinessAlone)
            .to_string(),
    };
    format!("{:>10.0} {against:>16}", rates.median(contestant))
}

/// Returns the figures of one round as a line. `round` is counted from 0.
fn round_line(rates: &Rates, round: usize, rounds: usize) -> String {
    let figures: Vec<_> = Contestant::ALL
        .iter()
        .map(|contestant| {
            let rate = rates.of(*contestant).get(round).copied();
            format!("{contestant} {:>6.0}/s", rate.unwrap_or(f64::NAN))
        })
        .collect();
    format!(
        "cost, round {} of {rounds}: {}",
        round + 1,
        figures.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates() -> Rates {
        let mut rates = Rates::default();
        rates.add(Contestant::BusinessAlone, 2_000.0);
        rates.add(Contestant::ByHand, 900.0);
        rates.add(Contestant::Idem, 1_000.0);
        rates
    }

    /// The line of a round has the rates of this round, and not the medians.
    #[test]
    fn line_of_a_round_has_the_rates_of_this_round() {
        let mut rates = rates();
        rates.add(Contestant::BusinessAlone, 3_000.0);
        rates.add(Contestant::ByHand, 1_500.0);
        rates.add(Contestant::Idem, 1_800.0);
        assert_eq!(
            round_line(&rates, 1, 7),
            "cost, round 2 of 7: business alone   3000/s, by hand   1500/s, idem   1800/s"
        );
    }

    /// Only complete rounds are printed, and each of them once.
    #[test]
    fn each_complete_round_is_printed_once() {
        let mut view = CostView::new(2).unwrap();
        let mut rates = rates();
        view.print(&rates);
        assert_eq!(view.printed, 1);
        rates.add(Contestant::Idem, 1_000.0);
        view.print(&rates);
        assert_eq!(view.printed, 1);
    }
}
