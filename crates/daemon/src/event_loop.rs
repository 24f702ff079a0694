//! The loop: waits for events, in the order of their urgency, and hands each one to the daemon or
//! to the server.

use std::os::fd::AsFd;
use std::sync::Arc;

use anyhow::Result;
use omr_base::signals::SignalFd;
use omr_control::protocol::{Answer, Request};
use rustix::event::PollFlags;
use sd_notify::NotifyState;

use crate::daemon::{self, Daemon};
use crate::events::{Event, Sources};
use crate::news::News;
use crate::server::Server;
use crate::timer::Timer;
use crate::{notify, requests, views};

/// The daemon and what wakes it up.
pub struct EventLoop {
    daemon: Daemon,
    server: Server,
    tick: Timer,
    news: News,
}

impl EventLoop {
    /// A loop that does not run yet.
    pub fn new(daemon: Daemon, server: Server) -> Result<Self> {
        Ok(EventLoop { daemon, server, tick: Timer::new()?, news: News::default() })
    }

    /// Runs until a signal asks for the end.
    pub fn run(&mut self, signals: &SignalFd) -> Result<()> {
        self.tick.every(daemon::TICK)?;
        // The first readings only start the counters.
        self.daemon.tick();
        loop {
            for event in self.wait(signals)? {
                match event {
                    Event::Sample => self.daemon.sample(),
                    Event::Stall => self.daemon.stalled(),
                    Event::Worker => self.daemon.collect_outcomes(),
                    Event::Attributes => self.daemon.collect_changes(),
                    Event::Tick => self.tick(),
                    Event::Client(client) => serve(&mut self.daemon, &mut self.server, client),
                    Event::Connect => self.accept()?,
                    Event::Signal => match signals.read() {
                        Some(libc::SIGHUP) => self.daemon.reload(),
                        Some(_) => return Ok(()),
                        None => {}
                    },
                }
            }
            self.server.drop_closed();
            self.daemon.set_client_statements(self.server.statements());
        }
    }

    /// Ends what runs.
    pub fn end(self) {
        self.daemon.end();
    }

    /// Waits for events, in the order in which they are to be handled.
    fn wait(&self, signals: &SignalFd) -> Result<Vec<Event>> {
        let daemon = &self.daemon;
        let mut sources = Sources::default();
        sources.add(Event::Sample, &daemon.sweeps.sampler);
        if let Some(trigger) = daemon.sweeps.trigger.as_ref().filter(|_| daemon.is_in_the_way()) {
            sources.add_fd(Event::Stall, trigger.as_fd(), PollFlags::PRI);
        }
        sources.add(Event::Worker, &daemon.work);
        if let Some(changes) = daemon.world.tree.changes().filter(|_| daemon.world.collecting.may_go_on()) {
            sources.add_fd(Event::Attributes, changes, PollFlags::IN);
        }
        sources.add(Event::Tick, &self.tick);
        self.server.register(&mut sources);
        sources.add(Event::Signal, signals);
        let waiting = self.server.waiting();
        let mut events = sources.wait(waiting.is_empty())?;
        let more = waiting.into_iter().map(Event::Client).filter(|client| !events.contains(client));
        let more: Vec<Event> = more.collect();
        // A new client may take the place of another one, so clients come before.
        let place = events.iter().position(|event| matches!(event, Event::Connect | Event::Signal));
        let place = place.unwrap_or(events.len());
        events.splice(place..place, more);
        Ok(events)
    }

    fn accept(&mut self) -> Result<()> {
        self.server.accept(self.daemon.host.now());
        if !self.server.takes_more() {
            // Others wait for the next tick, which could be some seconds away.
            self.tick.every(daemon::TICK)?;
        }
        Ok(())
    }

    fn tick(&mut self) {
        self.tick.clear();
        let now = self.daemon.host.now();
        self.daemon.readings.presence = self.server.presence(now);
        self.daemon.readings.hibernates = self.server.hibernates(now);
        self.daemon.tick();
        tell_watchers(&self.daemon, &mut self.server, &mut self.news);
        self.server.close_silent(now);
        notify::tell(&NotifyState::Watchdog);
        if let Err(err) = self.tick.every(self.daemon.next_tick()) {
            log::error!("{err:#}");
        }
    }
}

/// Tells those who watch the status, once for all of them, if there is news.
pub fn tell_watchers(daemon: &Daemon, server: &mut Server, news: &mut News) {
    let watchers = server.watchers();
    let now = daemon.host.now();
    if watchers.is_empty() || !news.is_due(daemon, now) {
        return;
    }
    let clock = &daemon.host.kernel.clock;
    let before = clock.thread_cpu();
    let line = requests::status_line(views::status(daemon, now, news.image(daemon, now)));
    for client in watchers {
        server.tell(client, &line, now);
        server.spent(client, clock.thread_cpu().saturating_sub(before));
    }
}

/// A client is ready: it sends a request, or takes its answer.
pub fn serve(daemon: &mut Daemon, server: &mut Server, client: usize) {
    let now = daemon.host.now();
    let clock = Arc::clone(&daemon.host.kernel.clock);
    let before = clock.thread_cpu();
    let Some((request, peer)) = server.request(client, now) else {
        // A line that is no request costs its user as much as one.
        server.spent(client, clock.thread_cpu().saturating_sub(before));
        return;
    };
    let value = match request {
        Request::Hold { statements } => daemon.allowed_statements(&statements, peer).map(|(own, refused)| {
            server.keep(client, own);
            refused.into()
        }),
        Request::Presence { facts, hibernates } => {
            server.keep_presence(client, facts, hibernates, now);
            Ok(peer.speaks_for_all().into())
        }
        Request::Watch => {
            server.watch(client);
            let line = requests::status_line(views::status(daemon, now, views::image_view(daemon)));
            server.tell(client, &line, now);
            server.spent(client, clock.thread_cpu().saturating_sub(before));
            return;
        }
        request => requests::answer(daemon, request),
    };
    let answer = value.map_or_else(|err| Answer::Error(format!("{err:#}")), Answer::Ok);
    server.answer(client, &answer, now);
    server.spent(client, clock.thread_cpu().saturating_sub(before));
}
