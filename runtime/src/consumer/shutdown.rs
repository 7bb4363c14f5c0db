//! Waits for the signal to stop.

/// Waits until the process receives SIGTERM or SIGINT, or Ctrl-C on systems other than Unix.
pub async fn terminated() {
    let signal_received = signal_received().await;
    if let Err(error) = signal_received {
        tracing::error!(
            %error,
            "cannot listen for signals: the process stops only when it is killed"
        );
        std::future::pending::<()>().await;
    }
}

#[cfg(unix)]
async fn signal_received() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};

    let (mut term, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    tokio::select! {
        _ = term.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

#[cfg(not(unix))]
async fn signal_received() -> std::io::Result<()> {
    tokio::signal::ctrl_c().await
}
