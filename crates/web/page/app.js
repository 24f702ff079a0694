"use strict";
const box = document.getElementById("status");
const data = document.getElementById("omr-data");
if (data) box.textContent = JSON.stringify(JSON.parse(data.textContent), null, 1);
else new EventSource("api/events").addEventListener("status", event => {
  box.textContent = JSON.stringify(JSON.parse(event.data), null, 1);
});
