//! Runs test programs, some of them at the same time, and prints the output of each at its end.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::failures::Failures;
use crate::step;

/// The longest time without a line of output.
const SILENCE: Duration = Duration::from_secs(30);

/// A test program with its arguments.
pub struct Run {
    pub title: String,
    pub command: Command,
}

/// What a program has printed. `failure` names the failed tests.
struct Output {
    lines: Vec<String>,
    failure: Option<String>,
}

/// The running programs, each with the number of its tests that have ended.
type Running = Mutex<BTreeMap<String, usize>>;

/// Runs all programs, also after a failure, and `at_once` of them at the same time. The first
/// program starts first, and its output is printed last, because its summary ends the output of
/// this command. Returns a text for each program that failed.
pub fn run(runs: Vec<Run>, at_once: usize) -> Vec<String> {
    let queue = Mutex::new(runs.into_iter().enumerate());
    let running = Running::default();
    let (sender, outputs) = channel();
    let mut first = None;
    let mut failures = Vec::new();
    thread::scope(|scope| {
        for _ in 0..at_once {
            let (queue, running, sender) = (&queue, &running, sender.clone());
            scope.spawn(move || {
                // A separate statement, so that the queue is unlocked while the program runs.
                let next = || lock(queue).next();
                while let Some((number, run)) = next() {
                    let output = run_one(run, running);
                    // The receiver lives until all senders are dropped.
                    let _ = sender.send((number, output));
                }
            });
        }
        drop(sender);
        loop {
            match outputs.recv_timeout(SILENCE) {
                Ok((number, output)) => {
                    failures.extend(output.failure.clone());
                    if number == 0 {
                        first = Some(output);
                    } else {
                        output.print();
                    }
                }
                Err(RecvTimeoutError::Timeout) => eprintln!("{}", progress(&lock(&running))),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    });
    if let Some(output) = first {
        output.print();
    }
    failures
}

fn run_one(Run { title, command }: Run, running: &Running) -> Output {
    let began = Instant::now();
    lock(running).insert(title.clone(), 0);
    let mut failed_tests = Failures::default();
    let mut lines = Vec::new();
    let ended = step::read_lines(command, |line| {
        failed_tests.read(line);
        if let Some(tests) = lock(running).get_mut(&title)
            && line.starts_with("test ")
        {
            *tests += 1;
        }
        lines.push(line.to_owned());
    });
    lock(running).remove(&title);
    lines.insert(0, format!("{title} ({} s)", began.elapsed().as_secs()));
    let failure = ended.err();
    let failure = failure.map(|error| format!("{title}: {error:#}{}", failed_tests.report()));
    Output { lines, failure }
}

impl Output {
    /// Prints the output, unless the program has run no test.
    fn print(&self) {
        let has_tests = !self.lines.iter().any(|line| line == "running 0 tests");
        if has_tests || self.failure.is_some() {
            println!("{}\n", self.lines.join("\n").trim_end());
        }
    }
}

fn progress(running: &BTreeMap<String, usize>) -> String {
    let programs = running.iter();
    let programs = programs.map(|(title, tests)| format!("{title} ({tests} tests done)"));
    format!("running: {}", programs.collect::<Vec<_>>().join(", "))
}

/// Locks a value that no thread leaves incomplete.
fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(title: &str, script: &str) -> Run {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Run {
            title: title.to_owned(),
            command,
        }
    }

    #[test]
    fn failed_program_does_not_stop_the_next_and_is_named() {
        let directory = xshell::Shell::new().unwrap().create_temp_dir().unwrap();
        let made = directory.path().join("made");
        let fails = "printf 'failures:\n---- bad stdout ----\nwrong\nfailures:\n    bad\n'; exit 1";
        let runs = vec![
            sh("first", fails),
            sh("second", &format!("touch {}", made.display())),
        ];
        let failures = run(runs, 1);
        assert!(made.exists(), "{failures:?}");
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert!(failures[0].starts_with("first: `sh "), "{failures:?}");
        assert!(failures[0].ends_with("\n  bad\n    wrong"), "{failures:?}");
    }

    /// Each of the two programs waits for a file of the other one.
    #[test]
    fn programs_run_at_the_same_time() {
        let directory = xshell::Shell::new().unwrap().create_temp_dir().unwrap();
        let path = directory.path().display();
        let script = |own: &str, other: &str| {
            format!(
                "cd {path}; touch {own}; for i in $(seq 600); do \
                 [ -e {other} ] && exit 0; sleep 0.1; done; exit 1"
            )
        };
        let runs = vec![sh("a", &script("a", "b")), sh("b", &script("b", "a"))];
        assert_eq!(run(runs, 2), Vec::<String>::new());
    }

    #[test]
    fn progress_names_the_running_programs() {
        let running = BTreeMap::from([("server".to_owned(), 7), ("idem-relay".to_owned(), 0)]);
        assert_eq!(
            progress(&running),
            "running: idem-relay (0 tests done), server (7 tests done)"
        );
    }
}
