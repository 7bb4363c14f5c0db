//! Runs one step of the set-up: shows its progress and, when it fails, the end of its output and
//! advice.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, IsTerminal, PipeReader, Read, pipe, stderr};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};

/// The number of lines that are shown of the output of a failed program.
const TAIL_LINES: usize = 40;

/// Runs `command` to its end, and shows its progress instead of its output. `label` describes the
/// step, and `advice` is the remedy for a failure.
pub fn run(label: &str, mut command: Command, advice: &str) -> Result<()> {
    let (mut child, output) = spawn(&mut command).with_context(|| label.to_owned())?;
    let tail = follow(label, output);
    let status = child.wait()?;
    if !status.success() {
        let tail = Vec::from(tail).join("\n");
        bail!(
            "{label}: {} failed ({status})\n{tail}\n\nWhat to do: {advice}",
            command.get_program().display()
        );
    }
    Ok(())
}

/// Runs `command` on the terminal of this process, because the user wants its output.
pub fn show(mut command: Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot run {}", command.get_program().display()))?;
    ensure_success(&command, status)
}

/// Runs `command` to its end, and passes each line of its output and of its errors to `read`.
pub fn read_lines(mut command: Command, mut read: impl FnMut(&str)) -> Result<()> {
    let (mut child, output) = spawn(&mut command)?;
    let lines = lines_of(output);
    let mut exited = None;
    let status = loop {
        match lines.recv_timeout(Duration::from_millis(500)) {
            Ok(line) => read(&line),
            Err(RecvTimeoutError::Disconnected) => break child.wait()?,
            // A process that outlives the command can keep the pipe open. Read once more after the
            // exit, because the command can have written lines since the last read.
            Err(RecvTimeoutError::Timeout) => match exited {
                Some(status) => break status,
                None => exited = child.try_wait()?,
            },
        }
    };
    ensure_success(&command, status)
}

/// Starts `command`, and returns it with the pipe to which it writes its output and its errors.
fn spawn(command: &mut Command) -> Result<(Child, PipeReader)> {
    let (reader, writer) = pipe()?;
    command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let child = command
        .spawn()
        .with_context(|| format!("cannot run {}", command.get_program().display()))?;
    // The command keeps write ends of the pipe, and a read ends only when all are closed.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Ok((child, reader))
}

fn ensure_success(command: &Command, status: ExitStatus) -> Result<()> {
    let program = command.get_program().display();
    let arguments: Vec<_> = command
        .get_args()
        .map(|argument| argument.to_string_lossy())
        .collect();
    let arguments = arguments.join(" ");
    ensure!(
        status.success(),
        "`{program} {arguments}` failed ({status})"
    );
    Ok(())
}

/// Reads the lines of an output in a thread.
fn lines_of(output: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        // Not all programs write UTF-8, and cargo separates its progress with carriage returns.
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    lines
}

/// Reads the output to its end and returns the last lines.
fn follow(label: &str, output: PipeReader) -> VecDeque<String> {
    let lines = lines_of(output);
    if stderr().is_terminal() {
        follow_on_terminal(label, &lines)
    } else {
        follow_in_lines(label, &lines)
    }
}

fn follow_on_terminal(label: &str, lines: &Receiver<String>) -> VecDeque<String> {
    let style = ProgressStyle::with_template("{spinner} {prefix} [{elapsed}] {wide_msg:.dim}");
    let bar = ProgressBar::new_spinner().with_prefix(label.to_owned());
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    let started = Instant::now();
    let tail = collect(lines, Duration::from_millis(100), |last| {
        bar.set_message(last.to_owned());
        bar.tick();
    });
    bar.finish_and_clear();
    if started.elapsed() > Duration::from_secs(1) {
        eprintln!("{label}: {}", seconds(started));
    }
    tail
}

/// Prints the progress in lines, for logs: nothing for a short step, and a line every 30 seconds
/// for a long step.
fn follow_in_lines(label: &str, lines: &Receiver<String>) -> VecDeque<String> {
    let started = Instant::now();
    let mut next = Duration::from_secs(1);
    let tail = collect(lines, Duration::from_millis(500), |last| {
        if started.elapsed() >= next {
            eprintln!(
                "{}",
                format!("{label}: {} {last}", seconds(started)).trim_end()
            );
            next = started.elapsed() + Duration::from_secs(30);
        }
    });
    if started.elapsed() > Duration::from_secs(1) {
        eprintln!("{label}: done in {}", seconds(started));
    }
    tail
}

/// Keeps the last lines. Runs `on_progress` with the latest line, at every line and after every
/// `interval` without a line.
fn collect(
    lines: &Receiver<String>,
    interval: Duration,
    mut on_progress: impl FnMut(&str),
) -> VecDeque<String> {
    let mut tail = VecDeque::new();
    loop {
        match lines.recv_timeout(interval) {
            Ok(line) => {
                if tail.len() == TAIL_LINES {
                    tail.pop_front();
                }
                tail.push_back(line);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return tail,
        }
        on_progress(tail.back().map_or("", String::as_str));
    }
}

fn seconds(since: Instant) -> String {
    format!("{:.0} s", since.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_step_shows_the_end_of_its_output_and_the_advice() {
        let mut command = Command::new("sh");
        command.args(["-c", "seq 1 100; echo to stderr >&2; exit 3"]);
        let message = format!("{:#}", run("counting", command, "count again").unwrap_err());
        assert!(
            message.starts_with("counting: sh failed (exit status: 3)\n62\n"),
            "{message}"
        );
        assert!(
            message.ends_with("\n100\nto stderr\n\nWhat to do: count again"),
            "{message}"
        );
    }

    #[test]
    fn missing_program_is_named_in_the_error() {
        let message = format!(
            "{:#}",
            run("x", Command::new("no-such-program"), "").unwrap_err()
        );
        assert!(message.contains("cannot run no-such-program"), "{message}");
    }
}
