//! Messages to the service manager from within the loop. The crate sd-notify waits while the manager
//! hangs, and the loop must not wait for anybody.

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use sd_notify::NotifyState;

/// Sends a message if the service manager takes it at once; else it is lost.
pub fn tell(state: &NotifyState<'_>) {
    if let Some(address) = env::var_os("NOTIFY_SOCKET")
        && let Err(err) = send(address.as_bytes(), &state.to_string())
    {
        log::debug!("the service manager was not told: {err}");
    }
}

fn send(address: &[u8], text: &str) -> io::Result<()> {
    let address = match address {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to_addr(text.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_as_it_is_and_a_manager_that_hangs_is_not_waited_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let manager = UnixDatagram::bind(&path).expect("a socket");
        let address = path.as_os_str().as_bytes();
        send(address, "WATCHDOG=1").expect("sent");
        let mut buffer = [0; 64];
        let read = manager.recv(&mut buffer).expect("a message");
        assert_eq!(&buffer[..read], b"WATCHDOG=1");
        // Nobody reads any more. A blocking send would never return.
        let err = (0..100_000).find_map(|_| send(address, "WATCHDOG=1").err()).expect("a full queue");
        assert_eq!(err.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn the_managers_socket_may_have_an_abstract_name() {
        let name = format!("omr-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let manager = UnixDatagram::bind_addr(&address).expect("a socket");
        send(format!("@{name}").as_bytes(), "STATUS=idle").expect("sent");
        let mut buffer = [0; 64];
        let read = manager.recv(&mut buffer).expect("a message");
        assert_eq!(&buffer[..read], b"STATUS=idle");
    }
}
