"""Plays some months of the same temperatures through an MQTT broker.

SENSORS sensors publish READINGS readings each with QoS 1. The function `station` receives them, lets
`thermo` judge them, and begins a run of the chain `alarm` for unusual ones. The chain ends at the
topic of an alarm, which a real `mosquitto_sub` prints. A schedule writes a summary into the node's state. Exits 1 when a reading is missing from the
summary, or when the alarm of a known fault did not arrive.
"""

import argparse
import http.client
import json
import subprocess
import sys
import threading
import time

import paho.mqtt.client as mqtt

import drive

SENSORS = 10
READINGS = drive.READINGS
SECONDS_MAX = 60


def wait_for(what, ready):
    until = time.monotonic() + SECONDS_MAX
    while not ready():
        if time.monotonic() > until:
            sys.exit("FAILED: waited %d s for %s" % (SECONDS_MAX, what))
        time.sleep(0.05)


def summary(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/summary")
    return json.loads(connection.getresponse().read())


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--broker-port", type=int, required=True)
    options.add_argument("--http-port", type=int, required=True)
    options = options.parse_args()

    alarms = []
    subscriber = subprocess.Popen(
        ["mosquitto_sub", "-p", str(options.broker_port), "-q", "1", "-t", "sensors/+/alarm", "-v"],
        stdout=subprocess.PIPE, text=True)

    def read():
        for line in subscriber.stdout:
            alarms.append(line.strip())

    threading.Thread(target=read, daemon=True).start()
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", options.broker_port)
    client.loop_start()

    def heard():
        client.publish("sensors/probe/alarm", "is somebody listening?", qos=1)
        return alarms

    wait_for("mosquitto_sub", heard)

    year = drive.hourly_celsius()
    injected = sent = 0
    began = time.perf_counter()
    for number in range(SENSORS):
        name = "field-%02d" % number
        for body, fault in drive.readings_of(number, year, seed=2):
            reading = {**json.loads(body), "sensor": name}
            client.publish("sensors/%s/temp" % name, json.dumps(reading), qos=1)
            sent += 1
            injected += fault
    wait_for("the summary of all readings", lambda: summary(options.http_port).get("readings") == sent)
    seconds = time.perf_counter() - began
    result = summary(options.http_port)
    wait_for("the alarms", lambda: len([a for a in alarms if "/probe/" not in a]) >= result["anomalies"])
    client.loop_stop()
    subscriber.terminate()
    found = [line for line in alarms if "/probe/" not in line]
    print("%d readings over MQTT in %.1f s, %d faults among them" % (sent, seconds, injected))
    print("mosquitto_sub printed %d alarms, the last: %s" % (len(found), found[-1]))
    print("the summary that a schedule keeps: %s" % json.dumps(result))
    if len(found) < injected:
        sys.exit("FAILED: the alarm of a known fault is missing")


main()
