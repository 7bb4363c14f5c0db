//! What the library logs on the thread of a test.

use std::{
    io::Write,
    sync::{Arc, Mutex, PoisonError},
};

use tracing::{Level, subscriber::DefaultGuard};
use tracing_subscriber::fmt::MakeWriter;

/// The lines of the log at INFO and above. Cheap to clone.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Keeps what this thread logs while the guard lives.
    pub fn keep() -> (Self, DefaultGuard) {
        let log = Self::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(Level::INFO)
            .with_ansi(false)
            .with_writer(log.clone())
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    /// The lines of the library at this level that contain the text.
    pub fn lines(&self, level: Level, text: &str) -> Vec<String> {
        let (level, target) = (format!(" {level} "), "idem_client::");
        let log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = String::from_utf8_lossy(&log).into_owned();
        let fits = |line: &&str| line.contains(&level) && line.contains(target) && line.contains(text);
        lines.lines().filter(fits).map(str::to_owned).collect()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}
