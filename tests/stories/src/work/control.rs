//! The control of a worker by the test that started it: lines on its standard input and output.

use std::{process, thread};

use anyhow::{Context, Result};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// The lines on the standard input of this process.
pub struct Control(UnboundedReceiver<()>);

impl Control {
    /// Starts to read the standard input. The process ends when the input is closed, which happens
    /// at the latest when the parent process ends.
    pub fn listen() -> Self {
        let (sender, lines) = unbounded_channel();
        thread::spawn(move || {
            for line in std::io::stdin().lines() {
                if line.is_err() || sender.send(()).is_err() {
                    break;
                }
            }
            process::exit(70);
        });
        Self(lines)
    }

    /// Prints a line, and waits for a line on the standard input.
    pub async fn report_and_wait(&mut self, what: &str) -> Result<()> {
        println!("{what}");
        self.0.recv().await.context("the standard input is closed")
    }
}
