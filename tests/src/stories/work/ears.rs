//! What a worker is told while it works.

use std::{process, thread};

use anyhow::{Context, Result};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Hears whoever started this process.
pub struct Ears(UnboundedReceiver<()>);

impl Ears {
    /// Listens from now on. This process ends when whoever holds the other end of the pipe is gone.
    pub fn listen() -> Self {
        let (heard, ears) = unbounded_channel();
        thread::spawn(move || {
            for line in std::io::stdin().lines() {
                if line.is_err() || heard.send(()).is_err() {
                    break;
                }
            }
            process::exit(70);
        });
        Self(ears)
    }

    /// Says something and waits until it is told to go on.
    pub async fn say_and_wait(&mut self, what: &str) -> Result<()> {
        println!("{what}");
        self.0.recv().await.context("nobody listens any more")
    }
}
