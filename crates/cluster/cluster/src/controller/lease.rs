//! The lease: if there are several controllers, only its holder acts. The lease is a `Lease` of
//! `coordination.k8s.io`, held in the same way as other Kubernetes controllers hold theirs. The
//! holder renews the lease. If it is not renewed for its duration, another controller takes it. The
//! clocks of two machines are never compared: a controller measures with its own clock how long it
//! has seen no renewal.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use tokio::net::TcpStream;

use super::Options;
use crate::serving::{Place, Port};

pub(crate) const NAME: &str = "mote-controller";
/// The annotation of the lease with the address of the holder's management API.
pub(crate) const ADDRESS: &str = "mote.dev/address";
/// After this time without a renewal, another controller may take the lease.
const DURATION: Duration = Duration::from_secs(15);
/// How often the holder renews the lease.
const RENEW: Duration = Duration::from_secs(5);
/// The holder stops acting if it cannot renew the lease for this long. It stops before another
/// controller can act.
const GIVE_UP: Duration = Duration::from_secs(10);
/// How often the other controllers check the lease.
const LOOK: Duration = Duration::from_secs(2);

/// The lease, held by this process.
pub(super) struct Held {
    api: Api<Lease>,
    holder: String,
    address: String,
}

/// Waits until this process holds the lease. Until then it forwards connections to the holder, so
/// that every controller behind the Service answers and is ready.
pub(super) async fn acquire(client: kube::Client, options: &Options, port: &Port) -> Held {
    let api: Api<Lease> = Api::namespaced(client, &options.place.system_namespace);
    let address = format!("{}:{}", options.address, options.listen.port());
    let held = Held { api, holder: options.pod.clone(), address };
    // The renewal that was seen last, and the time at which it was seen.
    let mut seen: Option<(Option<String>, Instant)> = None;
    let mut look = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            _ = look.tick() => match held.try_take(&mut seen).await {
                Ok(true) => return held,
                Ok(false) => {}
                Err(error) => tracing::warn!("the lease cannot be taken: {error}"),
            },
            (inside, _, place) = port.next() => {
                tokio::spawn(pass(held.api.clone(), inside, place));
            }
        }
    }
}

/// Forwards a connection to the controller that holds the lease. That controller limits how long
/// the connection may be silent.
async fn pass(api: Api<Lease>, inside: TcpStream, place: Place) {
    tokio::select! {
        () = connect(api, inside) => {}
        () = place.ended() => {}
    }
}

async fn connect(api: Api<Lease>, mut inside: TcpStream) {
    let Ok(Ok(lease)) = tokio::time::timeout(LOOK, api.get(NAME)).await else { return };
    let Some(address) = lease.metadata.annotations.and_then(|mut notes| notes.remove(ADDRESS))
    else {
        return;
    };
    let connected = tokio::time::timeout(LOOK, TcpStream::connect(address)).await;
    if let Ok(Ok(mut outside)) = connected {
        // Either side may end the connection. Nobody needs to know why.
        let _ = tokio::io::copy_bidirectional(&mut inside, &mut outside).await;
    }
}

impl Held {
    async fn try_take(
        &self,
        seen: &mut Option<(Option<String>, Instant)>,
    ) -> Result<bool, kube::Error> {
        let Some(lease) = self.api.get_opt(NAME).await? else {
            let taken =
                self.api.create(&PostParams::default(), &self.filled(Lease::default())).await;
            return won(taken);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.unwrap_or_default();
        let version = lease.metadata.resource_version.clone();
        let is_ours = holder == self.holder || holder.is_empty();
        let since = match seen {
            Some((last, since)) if *last == version => *since,
            _ => {
                let now = Instant::now();
                *seen = Some((version, now));
                now
            }
        };
        if !is_ours && since.elapsed() < DURATION {
            return Ok(false);
        }
        // If two controllers try at once, the version of the object decides.
        won(self.api.replace(NAME, &PostParams::default(), &self.filled(lease)).await)
    }

    fn filled(&self, mut lease: Lease) -> Lease {
        let now = MicroTime(Timestamp::now());
        let before = lease.spec.take().unwrap_or_default();
        let is_ours = before.holder_identity.as_deref() == Some(&self.holder);
        let changes = before.lease_transitions.unwrap_or(0);
        lease.spec = Some(LeaseSpec {
            acquire_time: if is_ours { before.acquire_time } else { Some(now.clone()) },
            holder_identity: Some(self.holder.clone()),
            lease_duration_seconds: Some(DURATION.as_secs() as i32),
            lease_transitions: Some(if is_ours { changes } else { changes + 1 }),
            renew_time: Some(now),
            ..LeaseSpec::default()
        });
        let mut notes = lease.metadata.annotations.take().unwrap_or_default();
        notes.insert(ADDRESS.to_owned(), self.address.clone());
        lease.metadata =
            ObjectMeta { name: Some(NAME.to_owned()), annotations: Some(notes), ..lease.metadata };
        lease
    }

    /// Keeps renewing the lease. Returns the reason when the lease is lost.
    pub(super) async fn keep(&self) -> String {
        let mut renewed = Instant::now();
        let mut last = None;
        loop {
            tokio::time::sleep(RENEW).await;
            match tokio::time::timeout(RENEW, self.renew(&mut last)).await {
                Ok(Ok(true)) => renewed = Instant::now(),
                Ok(Ok(false)) => return "another controller holds the lease".to_owned(),
                Ok(Err(error)) => tracing::warn!("the lease cannot be renewed: {error}"),
                Err(_) => tracing::warn!("the lease cannot be renewed: no answer"),
            }
            if renewed.elapsed() > GIVE_UP {
                return format!("the lease was not renewed for {} s", GIVE_UP.as_secs());
            }
        }
    }

    /// Renews the lease. One request is enough if nobody else has written the lease since the last
    /// renewal, which the version of the object shows.
    async fn renew(&self, last: &mut Option<Lease>) -> Result<bool, kube::Error> {
        let params = PostParams::default();
        if let Some(known) = last.take() {
            match self.api.replace(NAME, &params, &self.filled(known)).await {
                Err(kube::Error::Api(error)) if error.code == 409 => {}
                written => {
                    *last = Some(written?);
                    return Ok(true);
                }
            }
        }
        let lease = self.api.get(NAME).await?;
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
        if holder != Some(&self.holder) {
            return Ok(false);
        }
        match self.api.replace(NAME, &params, &self.filled(lease)).await {
            Err(kube::Error::Api(error)) if error.code == 409 => Ok(false),
            written => {
                *last = Some(written?);
                Ok(true)
            }
        }
    }

    /// Lets another controller take the lease at once.
    pub(super) async fn give_back(&self) {
        let give = async {
            let mut lease = self.api.get(NAME).await?;
            let spec = lease.spec.get_or_insert_default();
            if spec.holder_identity.as_deref() == Some(&self.holder) {
                spec.holder_identity = None;
                self.api.replace(NAME, &PostParams::default(), &lease).await?;
            }
            Ok::<_, kube::Error>(())
        };
        let given = tokio::time::timeout(Duration::from_secs(2), give).await;
        if !matches!(given, Ok(Ok(()))) {
            tracing::warn!("the lease was not given back; it runs out by itself");
        }
    }
}

/// Whether the write succeeded. A conflict means that another controller was faster.
fn won(result: Result<Lease, kube::Error>) -> Result<bool, kube::Error> {
    match result {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(error)) if error.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}
