//! `omr watch`: follows the interruption notices of a cloud provider and has the daemon prepare.
//!
//! It is a process of its own, without any privilege: this process speaks to the network, and the
//! daemon changes memory. One thread polls each source, and one tells the daemon.

mod azure;
mod ec2;
mod gcp;
mod http;
mod notice;
mod source;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::{Context, Result};
use omr_base::exit::Exit;
use omr_base::text::printable;
use omr_config::{Cloud, Provider};
use omr_kernel::Kernel;
use omr_kernel::dmi::Dmi;

use self::http::Server;
use self::notice::{Announced, Change, Notice};
use self::source::Source;

pub use self::notice::Due;

/// The asset tag of Azure's machines. Other machines on Hyper-V have the same vendor.
const AZURE_CHASSIS: &str = "7783-7084-3265-9085-8269-3286-77";

/// The pause after the first failure of a source. It doubles with each further one.
const BACKOFF: Duration = Duration::from_secs(1);
/// The longest pause after a failure.
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// All sources of this machine's provider.
pub struct Watch {
    server: Arc<Server>,
    sources: Vec<Box<dyn Source>>,
}

/// The receiver of requests.
pub trait EventReceiver: Send {
    /// Has the machine prepared.
    fn prepare(&self, due: &Due) -> Result<()>;

    /// Ends the preparation: its event is no longer announced.
    fn stand_down(&self) -> Result<()>;
}

impl Watch {
    /// The sources to follow on this machine. Nothing is asked yet.
    pub fn new(root: &Path, cloud: &Cloud) -> Result<Self> {
        let provider = match cloud.provider {
            Provider::Auto => detect(&Dmi::read(&Kernel::open(root)?)?).ok_or_else(|| {
                Exit::Unsupported.error(
                    "this is no machine of EC2, Google Compute Engine or Azure, by what its firmware says; \
                     if it is, write provider = \"ec2\", \"gcp\" or \"azure\" in the table [cloud]",
                )
            })?,
            given => given,
        };
        let sources: Vec<Box<dyn Source>> = match provider {
            Provider::Ec2 | Provider::Auto => {
                vec![Box::new(ec2::Ec2::new(ec2::Item::Action)), Box::new(ec2::Ec2::new(ec2::Item::Rebalance))]
            }
            Provider::Gcp => {
                vec![Box::new(gcp::Gcp::new(gcp::Key::Preempted)), Box::new(gcp::Gcp::new(gcp::Key::MaintenanceEvent))]
            }
            Provider::Azure => vec![Box::new(azure::Azure::default())],
        };
        Ok(Watch { server: Arc::new(Server::new(cloud.endpoint)), sources })
    }

    /// The names of the sources, for the log.
    pub fn names(&self) -> String {
        self.sources.iter().map(|source| source.name()).collect::<Vec<_>>().join(", ")
    }

    /// Polls each source once and sends the requests that follow. Returns the number of requests.
    /// When a source fails, the requests that follow from the others are sent before the error is
    /// returned.
    pub fn once(&mut self, receiver: &dyn EventReceiver) -> Result<usize> {
        let mut announced = Announced::default();
        let mut failed = Ok(());
        for (index, source) in self.sources.iter_mut().enumerate() {
            match source.poll(&self.server).with_context(|| source.name()) {
                Ok(notices) => tell_changes(announced.update(index, notices)),
                Err(err) if failed.is_ok() => failed = Err(err),
                Err(err) => log::warn!("{err:#}"),
            }
        }
        let mut told = 0;
        while let Some(due) = announced.due(self.server.now()) {
            receiver.prepare(&due)?;
            announced.told(&due.id);
            told += 1;
        }
        failed.map(|()| told)
    }

    /// Polls the sources and sends requests until the process ends.
    pub fn follow(self, receiver: &dyn EventReceiver) -> Result<()> {
        let Watch { server, sources } = self;
        let (sender, seen) = channel();
        for (index, source) in sources.into_iter().enumerate() {
            let (server, sender) = (Arc::clone(&server), sender.clone());
            std::thread::Builder::new()
                .name("omr-source".into())
                .stack_size(256 << 10)
                .spawn(move || poll_source(index, source, &server, &sender))
                .context("start a thread")?;
        }
        drop(sender);
        let mut announced = Announced::default();
        loop {
            let wait = announced.next(server.now()).unwrap_or(Duration::from_secs(3600));
            match seen.recv_timeout(wait) {
                Ok((source, notices)) => {
                    let before = announced.any_told();
                    tell_changes(announced.update(source, notices));
                    if before
                        && !announced.any_told()
                        && let Err(err) = receiver.stand_down()
                    {
                        log::warn!("{err:#}");
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                // The senders never end.
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            while let Some(due) = announced.due(server.now()) {
                match receiver.prepare(&due) {
                    Ok(()) => announced.told(&due.id),
                    Err(err) => {
                        log::error!("{}: {err:#}", due.why);
                        announced.refused(&due.id, server.now());
                    }
                }
            }
        }
    }
}

/// Polls a source again and again. The first failure is logged as a warning. Events that were
/// announced before a failure stay announced.
fn poll_source(index: usize, mut source: Box<dyn Source>, server: &Server, seen: &Sender<(usize, Vec<Notice>)>) {
    let mut backoff = None;
    loop {
        let wait = match source.poll(server) {
            Ok(notices) => {
                if backoff.take().is_some() {
                    log::info!("{}: answers again", source.name());
                }
                if seen.send((index, notices)).is_err() {
                    return;
                }
                source.interval()
            }
            Err(err) => {
                if backoff.is_none() {
                    log::warn!("{}: {}", source.name(), printable(&format!("{err:#}")));
                } else {
                    log::debug!("{}: {}", source.name(), printable(&format!("{err:#}")));
                }
                let wait = backoff.map_or(BACKOFF, |last: Duration| (last * 2).min(BACKOFF_MAX));
                backoff = Some(wait);
                wait.max(source.interval())
            }
        };
        std::thread::sleep(wait);
    }
}

fn tell_changes(changes: Vec<Change>) {
    for change in changes {
        match change {
            Change::New(Notice { what, purpose: Some(_), .. }) => log::warn!("announced: {what}"),
            Change::New(Notice { what, .. }) => log::info!("announced: {what}"),
            Change::Withdrawn(Notice { what, .. }) => log::info!("not announced any more: {what}"),
        }
    }
}

/// The provider of this machine; `None`: it is not known.
fn detect(dmi: &Dmi) -> Option<Provider> {
    let is = |field: &Option<String>, text: &str| field.as_deref() == Some(text);
    // Instances of the Xen generation say it in the version of their BIOS: "4.11.amazon".
    let xen_ec2 = dmi.bios_version.as_ref().is_some_and(|version| version.to_lowercase().ends_with("amazon"));
    if is(&dmi.sys_vendor, "Amazon EC2") || xen_ec2 {
        Some(Provider::Ec2)
    } else if is(&dmi.product_name, "Google Compute Engine") {
        Some(Provider::Gcp)
    } else if is(&dmi.sys_vendor, "Microsoft Corporation") && is(&dmi.chassis_asset_tag, AZURE_CHASSIS) {
        Some(Provider::Azure)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use omr_testkit::FakeRoot;

    use super::*;

    fn detected(files: &[(&str, &str)]) -> Option<Provider> {
        let root = FakeRoot::new();
        root.write("proc/meminfo", "");
        root.write("sys/kernel/x", "");
        for (name, text) in files {
            root.write(format!("sys/class/dmi/id/{name}"), format!("{text}\n"));
        }
        let kernel = Kernel::open(root.path()).expect("a kernel");
        detect(&Dmi::read(&kernel).expect("DMI"))
    }

    #[test]
    fn the_firmware_tells_whose_machine_it_is() {
        assert_eq!(detected(&[("sys_vendor", "Amazon EC2"), ("product_name", "m7i.large")]), Some(Provider::Ec2));
        assert_eq!(detected(&[("sys_vendor", "Xen"), ("bios_version", "4.11.amazon")]), Some(Provider::Ec2));
        assert_eq!(detected(&[("product_name", "Google Compute Engine")]), Some(Provider::Gcp));
        let microsoft = ("sys_vendor", "Microsoft Corporation");
        assert_eq!(detected(&[microsoft, ("chassis_asset_tag", AZURE_CHASSIS)]), Some(Provider::Azure));
        assert_eq!(detected(&[microsoft, ("chassis_asset_tag", "0000")]), None, "Hyper-V at home");
        assert_eq!(detected(&[("sys_vendor", "QEMU")]), None);
        assert_eq!(detected(&[]), None);
    }
}
