//! Finds the failed tests in the output of the test harness, and what they printed.
//!
//! Thousands of lines can follow a failed test, and a log often keeps only its end. So the failed
//! tests are named again at the end of the output.

use std::collections::VecDeque;

/// The number of lines that are repeated of the output of a failed test. The message of its panic
/// is at the end of the output.
const LINES_OF_A_TEST: usize = 12;

/// The failed tests of one run of cargo, in the order in which the harness described them.
#[derive(Debug, Default)]
pub struct Failures {
    tests: Vec<Failure>,
    place: Place,
}

#[derive(Debug)]
struct Failure {
    name: String,
    output: VecDeque<String>,
}

impl Failure {
    fn push(&mut self, line: &str) {
        if line.is_empty() {
            return;
        }
        if self.output.len() == LINES_OF_A_TEST {
            self.output.pop_front();
        }
        self.output.push_back(line.to_owned());
    }
}

/// The place in the output of the harness. A line "failures:" begins the outputs of the failed
/// tests. A second one ends them and begins the list of names.
#[derive(Debug, Default)]
enum Place {
    #[default]
    Tests,
    Title,
    Outputs,
    Backtrace,
    Names,
}

impl Failures {
    /// Reads the next line of the output.
    pub fn read(&mut self, line: &str) {
        if begins_or_ends_program(line) {
            self.place = Place::Tests;
            return;
        }
        let is_title = line == "failures:";
        match self.place {
            Place::Tests if is_title => self.place = Place::Title,
            _ if is_title => self.place = Place::Names,
            Place::Tests => {}
            Place::Names => self.read_name(line),
            Place::Title | Place::Outputs | Place::Backtrace => self.read_output(line),
        }
    }

    /// Adds a failed test whose output the harness has not captured.
    fn read_name(&mut self, line: &str) {
        let Some(name) = line.strip_prefix("    ") else {
            return;
        };
        if self.tests.iter().all(|test| test.name != name) {
            self.tests.push(Failure {
                name: name.to_owned(),
                output: VecDeque::new(),
            });
        }
    }

    fn read_output(&mut self, line: &str) {
        if let Some(name) = heading(line) {
            self.tests.push(Failure {
                name: name.to_owned(),
                output: VecDeque::new(),
            });
            self.place = Place::Outputs;
            return;
        }
        if let Place::Title = self.place {
            return;
        }
        // The backtrace of a panic begins with a small letter, that of an error with a capital one.
        if line.eq_ignore_ascii_case("stack backtrace:") {
            self.place = Place::Backtrace;
        } else if !line.is_empty() && !line.starts_with(' ') && !line.starts_with("note: ") {
            self.place = Place::Outputs;
        }
        if let (Place::Outputs, Some(test)) = (&self.place, self.tests.last_mut()) {
            test.push(line);
        }
    }

    /// Returns the name of each failed test and the end of its output, in indented lines.
    pub fn report(&self) -> String {
        let mut report = String::new();
        for Failure { name, output } in &self.tests {
            report += &format!("\n  {name}");
            for line in output {
                report += &format!("\n    {line}");
            }
        }
        report
    }
}

/// Returns whether a test binary begins or ends with this line. A test can write a line "failures:"
/// of its own, so the place is set again here.
fn begins_or_ends_program(line: &str) -> bool {
    line.starts_with("test result: ") || line.starts_with("running ") && line.contains(" test")
}

/// Returns the name of the test in a line like `---- tests::name stdout ----`.
fn heading(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(output: &str) -> String {
        let mut failures = Failures::default();
        output.lines().for_each(|line| failures.read(line));
        failures.report()
    }

    /// The output of three test binaries. Each has one failed test, and the tests write lines of
    /// their own. The output of the last test is not captured.
    const OUTPUT: &str = "
running 2 tests
test tests::good ... ok
test tests::bad ... FAILED

failures:

---- tests::bad stdout ----
the server said 7

thread 'tests::bad' (1) panicked at src/lib.rs:3:9:
assertion failed: 7 is even
stack backtrace:
   0: __rustc::rust_begin_unwind

thread 'tests::bad' (1) panicked at src/lib.rs:9:9:
the server did not stop
stack backtrace:
   0: __rustc::rust_begin_unwind

failures:
    tests::bad

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out

running 1 test
test other ... FAILED

failures:

---- other stdout ----
Error: connection refused

Stack backtrace:
   0: std::backtrace::Backtrace::create
             at ./src/lib.rs:3:9
the log is in target/clusters

failures:
    other

test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out

running 1 test
failures:
test loud ... FAILED

failures:

failures:
    loud

test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out
";

    #[test]
    fn failed_tests_of_each_binary_are_named_with_their_output() {
        assert_eq!(
            report(OUTPUT),
            "\n  tests::bad\
             \n    the server said 7\
             \n    thread 'tests::bad' (1) panicked at src/lib.rs:3:9:\
             \n    assertion failed: 7 is even\
             \n    thread 'tests::bad' (1) panicked at src/lib.rs:9:9:\
             \n    the server did not stop\
             \n  other\
             \n    Error: connection refused\
             \n    the log is in target/clusters\
             \n  loud"
        );
    }

    #[test]
    fn only_the_end_of_a_long_output_is_repeated() {
        let lines: Vec<_> = (0..100).map(|number| format!("line {number}")).collect();
        let report = report(&format!(
            "failures:\n---- long stdout ----\n{}\nfailures:\n    long\n",
            lines.join("\n")
        ));
        assert!(report.starts_with("\n  long\n    line 88\n"), "{report}");
        assert!(report.ends_with("\n    line 99"), "{report}");
    }

    #[test]
    fn output_without_a_failed_test_has_no_report() {
        assert_eq!(report("running 1 test\ntest a ... ok\n"), "");
    }
}
