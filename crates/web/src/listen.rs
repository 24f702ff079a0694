//! The sockets that the server listens on.

use std::fmt;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use omr_base::exit::Exit;
use rustix::net::{AddressFamily, getsockname, sockopt};

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// An IP address and a port; port 0 is any free one.
    Address(SocketAddr),
    /// The path of a Unix socket.
    Path(PathBuf),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with('/') {
            return Ok(Listen::Path(text.into()));
        }
        text.parse().map(Listen::Address).map_err(|_| {
            "expected an address such as 127.0.0.1:9099 or [::1]:9099, or the absolute path of a socket".to_owned()
        })
    }
}

/// A socket that is listened on.
#[derive(Debug)]
pub enum Listener {
    /// A TCP socket.
    Tcp(TcpListener, SocketAddr),
    /// A Unix socket; its mode decides who may connect.
    Unix(UnixListener),
}

/// A socket file that is removed when the server ends.
#[derive(Debug)]
pub struct Remove(PathBuf);

impl Drop for Remove {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Listens on this address.
pub fn open(listen: &Listen) -> Result<(Listener, Option<Remove>)> {
    match listen {
        Listen::Address(address) => {
            let listener = TcpListener::bind(address).map_err(|err| match err.kind() {
                ErrorKind::AddrInUse => {
                    Exit::Failed.error(format!("{address}: another program listens there; choose another port"))
                }
                _ => anyhow::Error::new(err).context(format!("listen on {address}")),
            })?;
            let address = listener.local_addr()?;
            Ok((Listener::Tcp(listener, address), None))
        }
        Listen::Path(path) => {
            // Only the own user may connect, from the start on.
            let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
            let listener = UnixListener::bind(path);
            rustix::process::umask(before);
            let listener = listener.map_err(|err| match err.kind() {
                ErrorKind::AddrInUse => Exit::Failed.error(exists(path)),
                _ => anyhow::Error::new(err).context(format!("listen on {}", path.display())),
            })?;
            Ok((Listener::Unix(listener), Some(Remove(path.clone()))))
        }
    }
}

fn exists(path: &Path) -> String {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|of| of.file_type().is_socket());
    let path = path.display();
    match is_socket {
        true => format!("{path}: exists; another omr web listens there, or has left it: remove it then"),
        false => format!("{path}: exists and is no socket; choose another path"),
    }
}

/// Takes the sockets that systemd has opened. Without any, the error says what to do.
pub fn by_systemd() -> Result<Vec<Listener>> {
    let sockets = sd_notify::listen_fds().context("the sockets of systemd (LISTEN_FDS)")?;
    let listeners: Vec<Listener> = sockets.map(take).collect::<Result<_>>()?;
    if listeners.is_empty() {
        let text = "omr web needs a place to listen: systemctl start omr-web.socket starts it at the first visit, \
                    and omr web --listen 127.0.0.1:9099 starts it now";
        return Err(Exit::Usage.error(text));
    }
    Ok(listeners)
}

fn take(fd: i32) -> Result<Listener> {
    // SAFETY: systemd has opened it for this process, and nobody else takes it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let kind = || -> rustix::io::Result<_> {
        Ok((getsockname(&socket)?.address_family(), sockopt::socket_acceptconn(&socket)?))
    };
    match kind() {
        Ok((AddressFamily::UNIX, true)) => Ok(Listener::Unix(socket.into())),
        Ok((AddressFamily::INET | AddressFamily::INET6, true)) => {
            let listener = TcpListener::from(socket);
            let address = listener.local_addr()?;
            Ok(Listener::Tcp(listener, address))
        }
        Ok(_) => bail!("descriptor {fd} of systemd is no stream socket that listens (ListenStream=)"),
        Err(err) => bail!("descriptor {fd} of systemd is no socket: {err}"),
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listener::Tcp(_, address) => address.fmt(f),
            Listener::Unix(_) => f.write_str("a Unix socket"),
        }
    }
}
